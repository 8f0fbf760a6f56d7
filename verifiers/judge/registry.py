"""Makes the verifiers that ask a model. The two judge verifiers share one client."""

from __future__ import annotations

from olmorl.clock import Clock, SystemClock
from olmorl.config import HttpService, Verifiers
from olmorl.verifiers.judge.judge_question import JudgeQuestion
from olmorl.verifiers.judge.local_judge import LocalEndpoint
from olmorl.verifiers.judge.model_verifier import ModelVerifier
from olmorl.verifiers.judge.reward_model import RewardModelQuestion
from olmorl.verifiers.judge.service.client import Client
from olmorl.verifiers.judge.service.endpoint import HttpEndpoint, JudgeEndpoint, address

NAMES = ("general-quality", "general-quality_ref", "reward_model")


def model_verifiers(settings: Verifiers, clock: Clock | None = None) -> dict[str, ModelVerifier]:
    """One verifier for each of `NAMES`. Each connects at its first use.

    Raises:
        ConfigError: a template of the judge cannot be used.
    """
    clock = clock or SystemClock()
    judge = Client(_endpoint(settings.judge, "/v1", "/chat/completions", clock), settings.judge, clock)
    reward_model = Client(_endpoint(settings.reward_model, "", "/classify", clock), settings.reward_model, clock)
    verifiers = (
        ModelVerifier("judge", judge, JudgeQuestion(settings.judge, with_reference=False), settings.judge),
        ModelVerifier("judge", judge, JudgeQuestion(settings.judge, with_reference=True), settings.judge),
        ModelVerifier("reward_model", reward_model, RewardModelQuestion(settings.reward_model), settings.reward_model),
    )
    return dict(zip(NAMES, verifiers, strict=True))


def _endpoint(settings: HttpService, default_path: str, path: str, clock: Clock) -> JudgeEndpoint:
    if settings.url == "local":
        return LocalEndpoint(settings, default_path + path, clock)
    return HttpEndpoint(settings, address(settings.url or "", default_path, path), clock)
