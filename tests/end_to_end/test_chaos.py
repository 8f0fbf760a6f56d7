"""Faults strike runs without a model, and one on real engines: a short form of `make chaos`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from olmorl.learner.storage.ledger import read_ledger
from tests.chaos import campaign, faults
from tests.chaos.campaign import Campaign, play
from tests.chaos.episode import Episode, Outcome
from tests.chaos.rig import Rig
from tests.chaos.strike import Fault, Strike
from tests.chaos.table import summary
from tests.end_to_end.test_roles_killed import ADAPTERS, CRITIC

SIMULATED = [
    (
        *("SIGKILL actor", "SIGKILL learner rank", "corrupt prompt", "SIGKILL redis-server", "SIGSTOP actor"),
        *("disk full", "corrupt weights", "SIGKILL orchestrator"),
    ),
    (
        *("SIGKILL all actors", "corrupt result", "SIGSTOP learner rank", "disk hangs", "SIGKILL weight board"),
        *("SIGKILL everything in a checkpoint", "power cut, last writes lost", "SIGKILL Ray's raylet"),
    ),
    (
        *("SIGSTOP orchestrator", "SIGSTOP redis-server", "SIGKILL host of Redis", "SIGSTOP host of Redis"),
        "SIGKILL Ray's GCS",
    ),
]
"""Faults of the disk run only where a run can have its own disk. `make chaos` runs all others."""
REAL = ("SIGKILL engine core", "SIGKILL verifier", "SIGKILL learner rank")
DELTAS = ("versions missed", "corrupt delta", "SIGKILL learner rank in a publish")
NOT_OF_ACTORS = ("SIGKILL learner rank", "SIGKILL redis-server", "SIGKILL orchestrator", "Redis cuts connections")
SYNCHRONOUS = """
[schedule]
steps = 14
prompts_per_step = 4
max_lag = 0
[checkpoint]
every = 5
"""
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]


def strike(chosen: Campaign, names: Sequence[str], folder: Path, seed: int) -> Outcome:
    """One episode, which has to keep every promise."""
    outcome = play(chosen, folder, print, seed, [(name, chosen.faults[name]) for name in names])
    assert outcome.violations == []
    assert [record.fault for record in outcome.records] == list(names)
    found = summary([outcome])
    assert (found["prompts_lost"], found["prompts_doubled"], found["hangs"]) == (0, 0, 0)
    return outcome


@pytest.mark.parametrize("names", SIMULATED)
def test_a_run_gets_over_faults(names: Sequence[str], tmp_path: Path) -> None:
    chosen = campaign.simulated()
    strike(chosen, [name for name in names if name in chosen.faults], tmp_path, seed=0)


def between_checkpoints(fault: Fault) -> Fault:
    """When a step is done that no checkpoint has."""

    def strike(rig: Rig, random: Random) -> Strike:
        def is_one() -> bool:
            rig.steps.look()
            return bool(rig.steps.seen[-1].line["step"] % rig.settings.checkpoint.every)

        rig.until(is_one, "a step between checkpoints")
        return fault(rig, random)

    return strike


@pytest.mark.engine
def test_real_engines_get_over_faults(tmp_path: Path, policy: Path) -> None:
    chosen = campaign.real(policy)
    kinds = {**chosen.faults, REAL[-1]: between_checkpoints(chosen.faults[REAL[-1]])}
    outcome = strike(replace(chosen, faults=kinds), REAL, tmp_path, seed=0)
    killed, verifier, rank = outcome.records
    assert killed.noticed_s is not None and killed.draws_again > 0, "other engines got the lost draws"
    assert verifier.steps_replayed == 0
    assert rank.steps_replayed > 0 and rank.draws_again == 0, "replayed, not generated again"


@pytest.mark.engine
def test_ranks_that_share_rows_get_over_the_death_of_one(tmp_path: Path, policy: Path) -> None:
    chosen = campaign.shared_rows(policy)
    kinds = {**chosen.faults, REAL[-1]: between_checkpoints(chosen.faults[REAL[-1]])}
    (rank,) = strike(replace(chosen, faults=kinds), REAL[-1:], tmp_path, seed=0).records
    assert rank.steps_replayed > 0 and rank.draws_again == 0, "replayed, not generated again"


@pytest.mark.engine
@pytest.mark.parametrize(
    ("learner", "more"),
    [("", CRITIC), ("offload_critic = true", CRITIC), ("", ADAPTERS)],
    ids=["critic", "critic in turns", "adapters"],
)
def test_critic_and_adapters_get_over_the_death_of_one_rank(
    tmp_path: Path, policy: Path, learner: str, more: str
) -> None:
    chosen = campaign.roles(policy, learner, more)
    kinds = {**chosen.faults, REAL[-1]: between_checkpoints(chosen.faults[REAL[-1]])}
    (rank,) = strike(replace(chosen, faults=kinds), REAL[-1:], tmp_path, seed=0).records
    assert rank.steps_replayed > 0 and rank.draws_again == 0, "replayed, not generated again"


@pytest.mark.engine
def test_real_engines_follow_deltas_through_faults(tmp_path: Path, policy: Path) -> None:
    strike(campaign.deltas_in_files(policy), DELTAS, tmp_path, seed=0)


def final_state(run: Any) -> tuple[str, list[tuple[int, str, int | None]]]:
    """The policy, which is a digest of everything it was trained on, and how every draw ended."""
    ends = [(record["prompt_id"], str(record["outcome"]), record["step"]) for record in read_ledger(run.run_dir)]
    return (run.run_dir / "export" / "README.md").read_text(), ends


def test_with_lag_0_faults_that_spare_the_actors_change_nothing(simulate: Callable[[str], Any]) -> None:
    run = simulate(SYNCHRONOUS)
    run.start()
    assert run.wait() == 0, run.output()
    expected = final_state(run)
    run.run_dir.rename(run.folder / "undisturbed")

    rig = Rig(run, None, patience_s=60.0)
    run.start()
    episode = Episode(rig, seed=0, pairs=0.0)
    rig.more_steps(2)
    for name in NOT_OF_ACTORS:
        episode.hit([(name, faults.EVERYWHERE[name])])
    assert run.wait() == 0, run.output()
    assert run.lines()[-1]["incarnation"] == 3, "the learner was lost twice"
    assert final_state(run) == expected
