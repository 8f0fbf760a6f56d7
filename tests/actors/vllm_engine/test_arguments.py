"""vLLM's reading of our arguments in a real actor inside a Ray placement group."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.cluster, pytest.mark.timeout(300)]
ON_TWO_FAKED_GPUS = """
import json, os, sys
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

@ray.remote(num_cpus=1, num_gpus=2)
class Engine:
    def executors(self, folder):
        from vllm import AsyncEngineArgs
        from olmorl import config
        from olmorl.actors.vllm_engine.arguments import engine_arguments

        def executor(tensor_parallel, **changed):
            actors = config.Actors(tensor_parallel=tensor_parallel)
            arguments = engine_arguments(config.Model(path=folder), actors, 64, 0) | {"skip_tokenizer_init": True}
            made = AsyncEngineArgs(**arguments | changed).create_engine_config()
            return made.parallel_config.distributed_executor_backend

        return [executor(2), executor(2, distributed_executor_backend=None)]

ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False,
         object_store_memory=128 << 20, _node_ip_address="127.0.0.1")
group = placement_group([{"CPU": 1, "GPU": 2}])
where = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
engine = Engine.options(scheduling_strategy=where).remote()
print(json.dumps(ray.get(engine.executors.remote(sys.argv[1]))))
"""


@pytest.mark.slow
def test_a_split_engine_starts_its_own_processes_inside_a_placement_group(config_folder: Path) -> None:
    """vLLM's own choice there is its Ray executor, which asks Ray for a bundle per GPU that no actor has."""
    command = [sys.executable, "-c", ON_TWO_FAKED_GPUS, str(config_folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == ["mp", "ray"]
