"""What all tests share: a Ray of their own, which asks for a token as that of a run does."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from olmorl.deploy.access import guard_ray

# Here, not in a hook or a fixture: Ray reads its environment when it is imported, and another conftest may do that.
guard_ray(own=True)


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tokens of the tests' runs lie beside them, not in the home directory."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def ray_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command under test may make a token of its own: the one that Ray was imported with comes back after it."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", os.environ["RAY_AUTH_TOKEN"])


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    """Ray on the loopback address, with this process as its driver."""
    import ray

    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        namespace="olmorl",
        object_store_memory=128 << 20,
        _node_ip_address="127.0.0.1",
    )
    yield
    ray.shutdown()
