"""The deployment files pass schemas and a shell check, and start the runs of the recipes.

Nothing in here talks to Slurm, Kubernetes or Docker: it shows that the files are well formed and agree with the
command line, the plan and the lock, not that a cluster takes them.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pydantic import ValidationError

from olmorl import config
from olmorl.deploy import arguments
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.preflight import memory
from olmorl.deploy.preflight.memory import MemoryPlan
from olmorl.deploy.preflight.memory_places import GIB, MemoryPlace
from olmorl.deploy.preflight.served_models import PORT, serve_command
from tests.deploy.folders import olmo3
from tests.deploy.rayjob import RayJob

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SBATCH = DEPLOY / "slurm" / "olmorl.sbatch"
KUBERNETES = [
    document
    for name in ("storage.yaml", "judge.yaml", "olmorl.yaml")
    for document in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())
]
COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
RECIPE = DEPLOY / "recipes" / "olmo3-32b-think.toml"


def rayjob() -> dict[str, Any]:
    (found,) = (document for document in KUBERNETES if document["kind"] == "RayJob")
    return found


def job() -> dict[str, Any]:
    return rayjob()["spec"]


def pods() -> list[dict[str, Any]]:
    cluster = job()["rayClusterSpec"]
    return [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def judge() -> dict[str, Any]:
    """The pod template of the judge."""
    (found,) = (document["spec"] for document in KUBERNETES if document["kind"] == "Deployment")
    assert found["template"]["metadata"]["labels"] == found["selector"]["matchLabels"]
    return found["template"]


def settings_of(words: list[str]) -> config.Config:
    """The configuration of an `olmorl-launch` command line. The image's recipes are read from the checkout."""
    local = [word.replace("/opt/olmorl", str(ROOT)) for word in words]
    asked = arguments.parse(local)
    return config.load(asked.recipe, asked.overrides)


def test_the_shell_check_finds_nothing() -> None:
    check = [str(Path(sys.executable).with_name("shellcheck")), str(SBATCH)]
    found = subprocess.run(check, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_slurm_asks_for_the_nodes_of_the_run_it_starts() -> None:
    directives = [line.removeprefix("#SBATCH --") for line in SBATCH.read_text().splitlines() if "#SBATCH" in line]
    asked = dict(directive.partition("=")[::2] for directive in directives)
    (default,) = (line for line in SBATCH.read_text().splitlines() if line.strip().startswith("set -- --learner"))
    placed = plan(settings_of([str(RECIPE), *shlex.split(default)[2:]]))
    assert placed.learner_nodes + placed.actor_nodes + 1 == int(asked["nodes"]), "the judge has the last node"
    assert max(placed.ranks_per_node, placed.engines_per_node * placed.gpus_per_engine) == int(asked["gpus-per-node"])


@pytest.mark.parametrize(
    "document", [d for d in KUBERNETES if "ray.io" not in d["apiVersion"]], ids=lambda d: d["kind"]
)
def test_kubernetes_knows_every_field(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.33", strict=True)


@pytest.mark.parametrize("template", pods(), ids=["head", "workers"])
def test_kubernetes_knows_every_field_of_the_pods(template: dict[str, Any]) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", **template["metadata"]}}
    kubernetes_validate.validate({**pod, "spec": template["spec"]}, "1.33", strict=True)
    mounted = {mount["name"] for mount in template["spec"]["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in template["spec"]["volumes"]} == {"runs", "shared-memory"}


@pytest.mark.parametrize("template", [*pods(), judge()], ids=["head", "workers", "judge"])
def test_pods_have_no_privileges(template: dict[str, Any]) -> None:
    spec = template["spec"]
    context, container = spec["securityContext"], spec["containers"][0]
    assert context["runAsNonRoot"] and context["runAsUser"] == 1000
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    token = next(variable for variable in container["env"] if variable["name"] == "HF_TOKEN")
    assert token["valueFrom"]["secretKeyRef"]["name"] == "hub"


def test_pods_reach_each_other_name_servers_and_https_alone() -> None:
    (policy,) = (document for document in KUBERNETES if document["kind"] == "NetworkPolicy")
    own, names, outside = policy["spec"]["egress"]
    assert "Egress" in policy["spec"]["policyTypes"]
    assert own["to"] == [{"podSelector": policy["spec"]["podSelector"]}] and "ports" not in own
    assert {port["port"] for port in names["ports"]} == {53}
    assert outside["ports"] == [{"protocol": "TCP", "port": 443}]
    assert outside["to"][0]["ipBlock"]["except"] == ["169.254.0.0/16"]


def test_programs_run_in_the_sandbox_that_the_runtime_allows() -> None:
    assert settings_of(shlex.split(job()["entrypoint"])[1:]).verifiers.code_tier == "landlock"


def test_kuberay_knows_every_field_of_the_job() -> None:
    RayJob.model_validate(rayjob())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "rayClusterSpec", "authOption"), {"mode": "token"}),
        (("spec", "rayClusterSpec", "workerGroupSpecs", 0, "replicas"), "28"),
        (("spec", "rayClusterSpec", "workerGroupSpecs", 0, "rayStartParams", "object-store-memory"), 206158430208),
        (("spec", "submissionMode"), "K8sMode"),
    ],
)
def test_a_wrong_field_of_the_job_is_seen(path: tuple[Any, ...], value: Any) -> None:
    tree = copy.deepcopy(rayjob())
    within = tree
    for name in path[:-1]:
        within = within[name]
    within[path[-1]] = value
    with pytest.raises(ValidationError):
        RayJob.model_validate(tree)


def ray_starts() -> list[str]:
    """The commands under Slurm that start Ray, on the head and on the other nodes."""
    found = re.findall(r"/ray['\"] start (.*)", SBATCH.read_text().replace("\\\n", " "))
    assert len(found) == 2 and "--include-dashboard" in found[0]
    return found


def test_ray_knows_every_parameter_of_its_start() -> None:
    from ray.scripts.scripts import start as ray_start

    known = {option for parameter in ray_start.params for option in parameter.opts}
    cluster = job()["rayClusterSpec"]
    given = {
        f"--{name}"
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
        for name in group["rayStartParams"]
    }
    given |= {option for command in ray_starts() for option in re.findall(r"--[a-z-]+", command)}
    assert given <= known


def test_kubernetes_serves_the_judge_of_the_run_it_starts() -> None:
    settings = settings_of(shlex.split(job()["entrypoint"])[1:])
    (container,) = judge()["spec"]["containers"]
    assert container["command"] == serve_command("verifiers.judge", settings.verifiers.judge)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == str(settings.verifiers.judge.gpus)
    (service,) = (document for document in KUBERNETES if document["kind"] == "Service")
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert settings.verifiers.judge.url == f"http://{name}.{service['metadata']['namespace']}:{port}/v1"
    assert port == container["ports"][0]["containerPort"] == PORT
    labels = judge()["metadata"]["labels"]
    (policy,) = (document for document in KUBERNETES if document["kind"] == "NetworkPolicy")
    for selector in (service["spec"]["selector"], policy["spec"]["podSelector"]["matchLabels"]):
        assert selector.items() <= labels.items()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": PORT}


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> MemoryPlan:
    """The memory plan of the run that Kubernetes starts, which is also the default run under Slurm."""
    _, *words = shlex.split(job()["entrypoint"])
    model = ("--model.path", json.dumps(str(olmo3(tmp_path_factory.mktemp("models"), "32b"))))
    return memory.memory_plan(settings_of([*words, *model]))


def part(place: MemoryPlace, what: str) -> int:
    return sum(part.num_bytes for part in place.parts if part.what == what)


def bytes_of(quantity: str) -> int:
    assert quantity.endswith("Gi")
    return int(quantity.removesuffix("Gi")) * GIB


def test_the_object_stores_have_room_for_the_versions_of_the_plan(planned: MemoryPlan) -> None:
    """Not much more either: a plan that needs less should free the memory."""
    (workers,) = job()["rayClusterSpec"]["workerGroupSpecs"]
    given = int(workers["rayStartParams"]["object-store-memory"])
    needed = max(part(host, "object store") for host in planned.hosts.places)
    assert needed < given < 1.1 * needed
    (under_slurm,) = re.findall(r"OLMORL_OBJECT_STORE_BYTES:-(\d+)}", SBATCH.read_text())
    assert int(under_slurm) == given
    assert all('--object-store-memory="$object_store"' in command.replace("'", '"') for command in ray_starts())


def test_the_memory_of_the_pods_is_that_of_the_plan(planned: MemoryPlan) -> None:
    """Shared memory counts as memory of its container. Ray fills its whole object store before it spills."""
    (workers,) = job()["rayClusterSpec"]["workerGroupSpecs"]
    store = int(workers["rayStartParams"]["object-store-memory"])
    (container,) = workers["template"]["spec"]["containers"]
    (shared,) = (volume["emptyDir"] for volume in workers["template"]["spec"]["volumes"] if "emptyDir" in volume)
    limit, shm = bytes_of(container["resources"]["limits"]["memory"]), bytes_of(shared["sizeLimit"])
    staged = max(part(host, "shared memory") for host in planned.hosts.places)
    assert staged + store < shm < 1.3 * (staged + store)
    needed = max(host.needed - part(host, "object store") + store for host in planned.hosts.places)
    assert shm < limit and needed < limit < 2.5 * needed
    head = job()["rayClusterSpec"]["headGroupSpec"]
    (shared,) = (volume["emptyDir"] for volume in head["template"]["spec"]["volumes"] if "emptyDir" in volume)
    assert int(head["rayStartParams"]["object-store-memory"]) < bytes_of(shared["sizeLimit"])


def test_kubernetes_has_the_nodes_and_the_ray_of_the_run_it_starts() -> None:
    command, *words = shlex.split(job()["entrypoint"])
    settings = settings_of(words)
    placed = plan(settings)
    cluster = job()["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    assert command == "olmorl-launch"
    assert str(settings.run.directory) == "/runs"
    assert workers["replicas"] == workers["minReplicas"] == placed.learner_nodes + placed.actor_nodes
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert cluster["authOptions"] == {"mode": "token"}
    assert f"ray=={cluster['rayVersion']}" in (ROOT / "requirements" / "cpu.lock").read_text().splitlines()


def test_workers_may_use_rdma_devices_and_lock_memory_for_them() -> None:
    (workers,) = job()["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["rdma/hca"] == "1"
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


def test_only_pods_of_the_run_reach_each_other_and_kuberay_the_job_api() -> None:
    (policy,) = (document for document in KUBERNETES if document["kind"] == "NetworkPolicy")
    rule, job_api = policy["spec"]["ingress"]
    labels = policy["spec"]["podSelector"]["matchLabels"]
    assert rule == {"from": [{"podSelector": {"matchLabels": labels}}]}
    assert [template["metadata"]["labels"] for template in pods()] == [labels] * 2
    assert [port["port"] for port in job_api["ports"]] == [8265]
    submitter, operator = job_api["from"]
    (job,) = (document for document in KUBERNETES if document["kind"] == "RayJob")
    assert submitter["podSelector"]["matchLabels"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert operator["podSelector"]["matchLabels"] == {"app.kubernetes.io/component": "kuberay-operator"}


def test_deleting_a_job_leaves_its_checkpoints() -> None:
    job = yaml.safe_load_all((DEPLOY / "kubernetes" / "olmorl.yaml").read_text())
    assert {document["kind"] for document in job} == {"NetworkPolicy", "RayJob"}


def test_prometheus_takes_the_pattern_and_finds_the_demo() -> None:
    file = DEPLOY / "prometheus" / "prometheus.yml"
    (scraped,) = yaml.safe_load(file.read_text())["scrape_configs"]
    for path in (path for found in scraped["file_sd_configs"] for path in found["files"]):
        # The rules of Prometheus' file discovery.
        assert re.fullmatch(r"[^*]*(\*[^/]*)?\.(json|yml|yaml|JSON|YML|YAML)", path)
        assert (file.parent / path).resolve() == ROOT / "runs" / "demo" / "targets.json"


def test_compose_starts_the_demo_on_its_own_redis() -> None:
    services = COMPOSE["services"]
    settings = settings_of(services["olmorl"]["command"])
    assert settings.queue.url == "redis://redis:6379/0"
    [secret] = services["olmorl"]["secrets"]
    assert services["olmorl"]["environment"]["OLMORL_REDIS_PASSWORD_FILE"] == f"/run/secrets/{secret}"
    assert settings.model.build == "demo"
    server = services["redis"]["entrypoint"][-1]
    for wanted in ("--appendonly yes", "--maxmemory-policy noeviction", "--dir /data"):
        assert wanted in server
    assert services["olmorl"]["depends_on"]["redis"] == {"condition": "service_healthy"}
    named = {volume.partition(":")[0] for service in services.values() for volume in service["volumes"]}
    assert named - {"../prometheus"} == set(COMPOSE["volumes"])


def test_compose_watches_the_demo_where_its_metrics_are_served() -> None:
    services = {name: COMPOSE["services"][name] for name in ("prometheus", "alertmanager")}
    folder = DEPLOY / "prometheus"
    for name, service in services.items():
        assert service["profiles"] == ["watch"]
        assert service["network_mode"] == "service:olmorl"
        [mounted] = [volume for volume in service["volumes"] if volume.startswith(".")]
        assert (DEPLOY / "docker" / mounted.partition(":")[0]).resolve() == folder
        started = " ".join(service.get("command") or service["entrypoint"])
        assert f"/prometheus/{name}.yml" in started and (folder / f"{name}.yml").is_file()
    [alertmanager] = yaml.safe_load((folder / "prometheus.yml").read_text())["alerting"]["alertmanagers"]
    assert alertmanager["static_configs"] == [{"targets": ["localhost:9093"]}]
    assert "runs:/runs:ro" in services["prometheus"]["volumes"]


def test_every_alert_reaches_a_receiver() -> None:
    found = yaml.safe_load((DEPLOY / "prometheus" / "alertmanager.yml").read_text())
    receivers = {receiver["name"] for receiver in found["receivers"]}
    assert {found["route"]["receiver"], *(route["receiver"] for route in found["route"]["routes"])} == receivers


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt install prometheus)"
)
def test_prometheus_can_read_its_configuration() -> None:
    check = ["promtool", "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml")]
    found = subprocess.run(check, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_image_is_built_from_what_the_checkout_has() -> None:
    context = (DEPLOY / "docker" / COMPOSE["services"]["olmorl"]["build"]["context"]).resolve()
    dockerfile = (context / COMPOSE["services"]["olmorl"]["build"]["dockerfile"]).read_text()
    assert context == ROOT
    assert "make install" in dockerfile
    assert "\nUSER olmorl\n" in dockerfile
    for library in ("bubblewrap", "libnuma1", "libibverbs1", "librdmacm1", "ibverbs-providers"):
        assert library in dockerfile


FILES = sorted(path for path in DEPLOY.glob("[sdk]*/*") if path.is_file())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_has_a_secret(path: Path) -> None:
    for line in path.read_text().splitlines():
        if not line.lstrip().startswith("#") and ("PASSWORD=" in line or "TOKEN=" in line):
            assert "$(" in line, line
