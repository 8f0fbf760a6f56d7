"""A campaign: many faults, divided among episodes. Some episodes run in parallel."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

from tests.chaos import disk, faults
from tests.chaos.episode import Episode, Outcome, order
from tests.chaos.host_rig import on_four_hosts
from tests.chaos.rig import Rig
from tests.chaos.strike import Fault
from tests.end_to_end import recipes
from tests.end_to_end.launching import Launch

SIMULATED = """
[schedule]
steps = 100000
prompts_per_step = 4
max_lag = 2
[checkpoint]
every = 5
[supervision]
patience = 0.5
[weights]
store = "ray"
full_every = 4
"""
REAL = """
[sampling]
group_size = 4
max_tokens = 96
[schedule]
steps = 100000
prompts_per_step = 4
max_lag = {max_lag}
[learner]
learning_rate = 1e-4
cores = [1]
{learner}
[actors]
engines_per_node = 2
cores = [0]
max_running = 8
kv_cache_gib = 0.1
enforce_eager = true
stall_deadline_s = 20.0
start_deadline_s = 120.0
[checkpoint]
every = 5
{weights}
"""
ONE_RANK = "zero_stage = 2"
TWO_RANKS = "ranks_per_node = 2\nzero_stage = 2"
EPISODES = """
[episodes]
environment = "{folder}/world.py:World"
max_turns = 4
max_tokens = 160
timeout_s = 5.0
"""
WORLD = '''
import subprocess, sys

class World:
    """Replies after a tool, a process of its own, has run."""

    def reset(self, **row):
        self.turns = row["n"] % 3 + 1

    def step(self, reply):
        program = [sys.executable, "-S", "-c", "import time; time.sleep(0.3); print(1)", "olmorl-test-tool"]
        subprocess.run(program, check=True, capture_output=True)
        self.turns -= 1
        return "go on" if self.turns else None
'''
DELTAS = """
[weights]
full_every = 4
"""
IN_FILES = 'store = "file"\ndirectory = "{folder}/weights"'
"""Not in shared memory: versions there are always whole."""
IN_RAY = 'store = "ray"'
SHARED_ROWS = """
ranks_per_node = 2
sequence_parallel = 2
mlp_tiles = 2
gradient_checkpointing = "offload"
zero_stage = 3
deepspeed.zero_optimization.stage3_param_persistence_threshold = 0
"""
# More groups in flight than four actors can lease, so that every lost actor has leased groups.
HOSTS = """
[schedule]
steps = 100000
prompts_per_step = 4
max_lag = 4
[checkpoint]
every = 5
[supervision]
patience = 0.75
"""


@dataclass(frozen=True)
class Campaign:
    """One kind of run, and the faults it has to live through."""

    name: str
    make: Callable[[Path], AbstractContextManager[Rig]]
    """A new run in this folder, with what it needs around it."""
    faults: Mapping[str, Fault]
    episode: int
    """Faults in one run."""
    side_by_side: int


def simulated() -> Campaign:
    """Everything but the model is real: launcher, Ray, Redis, all processes, all files."""
    kinds = {**faults.EVERYWHERE, **faults.OF_WEIGHTS_IN_RAY, **({} if disk.missing() else faults.OF_OWN_DISK)}
    make = partial(_on_this_host, lambda folder: recipes.simulated(folder, SIMULATED), 240.0)
    return Campaign("simulated", make, kinds, 15, 2)


def real(policy: Path) -> Campaign:
    """Real engines and a real rank: two vLLM engines on one core, DeepSpeed on the other."""
    return _real("real", policy, ONE_RANK)


def episodes(policy: Path) -> Campaign:
    """Real engines whose answers are turns of a small environment, in processes of its own."""

    def launch(folder: Path) -> Launch:
        (folder / "world.py").write_text(WORLD)
        recipe = REAL.format(learner=ONE_RANK, max_lag=2, weights=EPISODES.format(folder=folder))
        return recipes.real(folder, policy, recipe)

    kinds = {name: faults.OF_PROCESSES[name] for name in ("SIGKILL actor", "SIGSTOP actor", "SIGKILL learner rank")}
    kinds |= {"SIGKILL redis-server": faults.OF_PROCESSES["SIGKILL redis-server"], **faults.OF_ENVIRONMENTS}
    return Campaign("episodes-real", partial(_on_this_host, launch, 300.0), kinds, 9, 1)


def shared_rows(policy: Path) -> Campaign:
    """Like `real`, with two ranks that share every row and all weights, and each publish a shard.

    The ranks are slow, so the draws of a smaller lag are done before an actor has several.
    """
    shared = _real("shared", policy, SHARED_ROWS, max_lag=4)
    return replace(shared, faults={**shared.faults, **faults.OF_SHARDS_IN_FILES})


def roles(policy: Path, learner: str, more: str) -> Campaign:
    """Like `real`, with two ranks that also hold a critic, a reference or adapters."""
    return _real("roles", policy, f"{TWO_RANKS}\n{learner}", more)


def deltas_in_files(policy: Path) -> Campaign:
    """Two such ranks, which publish most versions as deltas, in files."""
    kinds = {**faults.OF_DELTAS, **faults.OF_SHARDS_IN_FILES, **faults.OF_DELTAS_IN_FILES}
    return replace(_real("deltas", policy, SHARED_ROWS, DELTAS + IN_FILES, max_lag=4), faults=kinds)


def deltas_in_ray(policy: Path) -> Campaign:
    """Deltas in Ray's object store, of two ranks with rows of their own and whole weights."""
    kinds = {**faults.OF_DELTAS, **faults.OF_WEIGHTS_IN_RAY}
    return replace(_real("deltas-ray", policy, TWO_RANKS, DELTAS + IN_RAY, max_lag=4), faults=kinds)


def _real(name: str, policy: Path, learner: str, weights: str = "", max_lag: int = 2) -> Campaign:
    kinds = {**faults.OF_REAL_ENGINES, **faults.EVERYWHERE, **({} if disk.missing() else faults.OF_OWN_DISK)}

    def launch(folder: Path) -> Launch:
        recipe = REAL.format(learner=learner, max_lag=max_lag, weights=weights.format(folder=folder))
        return recipes.real(folder, policy, recipe)

    return Campaign(name, partial(_on_this_host, launch, 300.0), kinds, 9, 1)


def hosts() -> Campaign:
    """Like `simulated`, on hosts whose links break."""
    make = partial(on_four_hosts, lambda folder: recipes.simulated(folder, HOSTS), 300.0)
    return Campaign("hosts", make, faults.OF_HOSTS, 9, 1)


def run(campaign: Campaign, number: int, seed: int, folder: Path, say: Callable[[str], None]) -> list[Outcome]:
    """Have `number` faults strike, in an order that `seed` decides; returns the outcome of each episode."""
    dealt = order(campaign.faults, number, Random(seed))
    hands = [dealt[i : i + campaign.episode] for i in range(0, number, campaign.episode)]
    one = partial(play, campaign, folder, say)
    with ThreadPoolExecutor(campaign.side_by_side) as executor:
        return list(executor.map(one, range(seed, seed + len(hands)), hands))


def play(
    campaign: Campaign, folder: Path, say: Callable[[str], None], seed: int, hand: list[tuple[str, Fault]]
) -> Outcome:
    """One episode with the faults of `hand`; a run that kept every promise is removed."""
    place = folder / f"{campaign.name}-{seed}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    with campaign.make(place) as rig:
        episode = Episode(rig, seed)
        outcome = episode.run(partial(episode.deal, hand))
    if not outcome.violations:
        shutil.rmtree(place)
    say(
        f"{campaign.name} episode {seed}: {len(outcome.records)} of {len(hand)} faults, {outcome.steps} steps, "
        f"{len(outcome.violations)} violation(s): "
        + ", ".join(f"{record.fault} ({record.victim})" for record in outcome.records)
        + "".join(f"\n  {violation[:3000]}" for violation in outcome.violations)
    )
    return outcome


@contextmanager
def _on_this_host(make: Callable[[Path], Launch], patience_s: float, folder: Path) -> Iterator[Rig]:
    """A run of `make`, whose `runs` is a separate disk if possible."""
    with nullcontext() if disk.missing() else disk.mounted(folder / "runs") as own_disk:
        yield Rig(make(folder), own_disk, patience_s)
