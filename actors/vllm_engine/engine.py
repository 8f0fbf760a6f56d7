"""vLLM behind the `Engine` port: continuous batching, and weights that change between two of its steps.

the actor's process             EngineCore                worker, one per GPU; on CPU a part of EngineCore
VllmEngine, AsyncLLM   ──RPC──>  scheduler  ──────────────>  model, StagedWeightLoader
  └── reaper.py                                              └── maps the staged file
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import Any, TypeVar

import numpy as np
from msgspec import structs

from olmorl import codec
from olmorl.actors.vllm_engine import compat
from olmorl.actors.vllm_engine.arguments import (
    SCORING_PRIORITY,
    sampling_params,
    scoring_params,
)
from olmorl.actors.vllm_engine.root_cause import ErrorOutput, death_cause
from olmorl.actors.vllm_engine.start import EngineStart, start_processes
from olmorl.actors.vllm_engine.weight_check import Shapes, check_fit, file_signature, published_shapes
from olmorl.clock import within
from olmorl.errors import EngineDied, PromptRefused, WeightError
from olmorl.messages import Completion, Floats, Span, TokenIds, Version
from olmorl.model_cost import VALUE_BYTES, AnswerWork, ModelCost, model_cost
from olmorl.ports import EngineLoad, EngineUse, Sampling, StagedWeights, Update

T = TypeVar("T")
LIVENESS_POLL_S = 0.2
PAGES_POLL_S = 0.01
"""Between two questions to the workers whether they have mapped a staged version."""


def tokens_of_text(output: Any, eos: int | None) -> Sequence[int]:
    """The tokens whose text is scored: all that are trained, but the token that ended the sequence.

    A text of `sampling.stop`, such as a closing tag, is part of the answer.
    """
    tokens: Sequence[int] = output.token_ids
    by_token = output.finish_reason == "stop" and (not isinstance(output.stop_reason, str) or tokens[-1] == eos)
    return tokens[:-1] if by_token else tokens


class _StepGauge:
    """The statistics of the engine's steps.

    The number of running requests after a step holds until the next step. While an update stalls the engine, they run
    too: `ActorStatus.stall_s_total` has that time.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.step_bytes = 0.0
        """Bytes of weights that the steps have read."""
        self.cost: ModelCost | None = None
        self.kv_used = 0.0
        self.running = 0
        """Requests that ran in the last step."""
        self.in_flight = 0
        """Requests that `generate` has passed on and not finished."""
        self.scored_s = 0.0
        self._scoring = 0
        """Tokens of the prompt that waits to be scored."""
        self._scoring_since = 0.0
        self._step_at = self._noted_at = time.monotonic()
        self._busy_s = 0.0
        self._running_s = 0.0

    @property
    def unfinished(self) -> int:
        """Requests that ran in the last step and are not finished."""
        return min(self.running, self.in_flight)

    def record(self, scheduler_stats: Any, iteration_stats: Any) -> None:
        """Take the statistics of a step."""
        self._integrate()
        if iteration_stats is not None:
            self._note_score(iteration_stats)
            self.tokens += iteration_stats.num_generation_tokens
            if self.cost is not None and iteration_stats.num_generation_tokens:
                self.step_bytes += self.cost.step_bytes(iteration_stats.num_generation_tokens)
        if scheduler_stats is not None:
            self.running = scheduler_stats.num_running_reqs
            self.kv_used = scheduler_stats.kv_cache_usage

    def accepted(self, number: int) -> None:
        """Note a new request (1), or the end of one (-1)."""
        self._integrate()
        self.in_flight += number

    def scores(self, tokens: int) -> None:
        """Note that a prompt is passed on to be scored."""
        self._scoring, self._scoring_since = tokens, time.monotonic()

    def _note_score(self, stats: Any) -> None:
        """Take the time of the step that scored a prompt, as far as its tokens are the prompt's."""
        now = time.monotonic()
        began_at, self._step_at = max(self._step_at, self._scoring_since), now
        if 0 < self._scoring <= stats.num_prompt_tokens:
            computed = stats.num_prompt_tokens + stats.num_generation_tokens
            self.scored_s += (now - began_at) * self._scoring / computed
            self._scoring = 0

    def times(self) -> tuple[float, float]:
        """How long requests ran, and the same for each request, summed."""
        self._integrate()
        return self._busy_s, self._running_s

    def _integrate(self) -> None:
        now = time.monotonic()
        seconds, self._noted_at = now - self._noted_at, now
        self._busy_s += seconds if self.unfinished else 0.0
        self._running_s += seconds * self.unfinished


def _stat_logger(gauge: _StepGauge) -> Any:
    """Returns a class for vLLM's `stat_loggers`: its metrics for Prometheus, which fill the gauge too."""
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    class StepMetrics(PrometheusStatLogger):  # type: ignore[misc]
        def record(self, scheduler_stats: Any, iteration_stats: Any, *others: Any, **named: Any) -> None:
            gauge.record(scheduler_stats, iteration_stats)
            if iteration_stats is not None:
                # The same for all requests of the step. vLLM would observe it for each of them.
                iteration_stats = copy(iteration_stats)
                iteration_stats.inter_token_latencies_iter = iteration_stats.inter_token_latencies_iter[:1]
            super().record(scheduler_stats, iteration_stats, *others, **named)

    return StepMetrics


class VllmEngine:
    """One vLLM engine. Every token carries the version that computed it, and no update costs a token or a KV block.

    Of an engine on several nodes, this is the node with the scheduler. A `VllmFollower` runs on each of the others.

    Args:
        initial: the version that the model folder holds.
    """

    def __init__(self, start: EngineStart, initial: Version) -> None:
        self._start = start
        self._model = start.model
        self._actors = start.actors
        self._version = initial
        self._llm: Any = None
        self._tokenizer: Any = None
        self._gauge = _StepGauge()
        self._shapes: Shapes = {}
        self._aborted = 0
        self._scored = 0
        self._generated = 0
        self._cost: ModelCost | None = None
        self._finished = self._told = AnswerWork()
        self._cause = "it is not running"
        self._output = ErrorOutput()

    async def start(self, weights: StagedWeights | None) -> None:
        """Load the model and come up; with `weights`, at that version.

        Raises:
            ModelError: a folder that vLLM cannot load.
            ConfigError: a core that does not exist.
            StartError: a setting or a file that the engine cannot start with.
            EngineDied: the engine's processes ended while they started.
        """
        self._start.check_core()
        await asyncio.to_thread(self._construct)
        self._start.own(compat.core_pids(self._llm))
        self._tokenizer = self._llm.get_tokenizer()
        self._cost = model_cost(self._llm.model_config.hf_text_config, self._shapes, VALUE_BYTES[self._model.dtype])
        self._gauge.cost = self._cost
        self._cause = "its processes have ended"
        await self._call(self._llm.update_weight_version(str(self._version)))
        if weights is not None:
            await self.update(weights)

    def _construct(self) -> None:
        """Start the processes; blocks, so it runs in a thread."""

        def make(vllm_config: Any) -> Any:
            from vllm.v1.engine.async_llm import AsyncLLM

            return AsyncLLM.from_vllm_config(vllm_config, stat_loggers=[_stat_logger(self._gauge)])

        self._llm, self._shapes = start_processes(make, self._start)

    # --- generation -----------------------------------------------------------------------------

    async def generate(
        self, request_id: str, prompt: TokenIds, sampling: Sampling, priority: int = 0, salt: str | None = None
    ) -> Completion:
        """Sample one completion.

        Raises:
            PromptRefused: the prompt is empty or leaves no room for a token, or the sampling is out of vLLM's bounds.
            EngineDied: the engine died, now or earlier.
        """
        most = self._start.max_model_len - 1
        if not 0 < len(prompt) <= most:
            raise PromptRefused(f"a prompt of {len(prompt)} tokens: the engine takes 1 to {most}")
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError

        llm = self._running()
        salted = tokens_input(prompt.tolist(), cache_salt=salt or str(self._version))
        self._gauge.accepted(1)
        try:
            collector = await llm.add_request(request_id, salted, sampling_params(sampling), priority=priority)
            output = await collector.get()
        except asyncio.CancelledError:
            for state in compat.unfinished(llm, request_id):
                self._aborted += state.detokenizer.num_output_tokens()
                self._finished += self._work_of(state)
            await llm.abort(request_id)
            raise
        except VLLMClientError as error:
            raise PromptRefused(f"request {request_id}: {error}") from None
        except EngineDeadError:
            raise EngineDied(f"the engine died with request {request_id}: {self._cause_of_death()}") from None
        finally:
            self._gauge.accepted(-1)
        finished = output.outputs[0]
        if self._cost is not None:
            self._finished += self._cost.answer(len(prompt), len(finished.token_ids), output.num_cached_tokens or 0)
        return self._completion(finished)

    def _running(self) -> Any:
        if self._llm is None:
            raise EngineDied(f"the engine of {self._model.path} is not running")
        return self._llm

    def _completion(self, output: Any) -> Completion:
        if output.finish_reason not in ("stop", "length"):
            raise EngineDied(f"the engine ended a request with {output.finish_reason!r}")
        token_ids = np.array(output.token_ids, dtype=np.int32)
        spans = tuple(Span(Version.parse(span.version), span.start, span.end) for span in output.weight_versions)
        return Completion(
            index=0,
            token_ids=token_ids,
            logprobs=np.array(output.logprobs.logprobs, dtype=np.float32),
            spans=spans,
            finish_reason=output.finish_reason,
            text=self._tokenizer.decode(tokens_of_text(output, self._tokenizer.eos_token_id)),
        )

    # --- weights --------------------------------------------------------------------------------

    async def update(self, staged: StagedWeights) -> Update:
        """Apply a version between two steps, on all workers or on none.

        An update that has begun is finished, also when the caller is cancelled.

        Raises:
            WeightError: the weights do not fit; the engine continues with its version.
            EngineDied: the engine died, or was ended because it holds half a version.
        """
        llm = self._running()
        shapes = published_shapes(self._shapes, self._model.lora)
        check_fit(staged, shapes, tied=getattr(llm.model_config.hf_config, "tie_word_embeddings", False))
        swap = asyncio.ensure_future(self._swap(llm, staged))
        try:
            return await asyncio.shield(swap)
        except asyncio.CancelledError:
            await asyncio.wait({swap})
            raise

    async def _swap(self, llm: Any, staged: StagedWeights) -> Update:
        version = staged.manifest.version
        manifest = structs.replace(staged.manifest, shards=())  # workers need the layout alone
        signatures = (file_signature(staged.path), *staged.on_followers)
        arguments = (str(staged.path), signatures, codec.encode(manifest), self._model.lora.scale)
        if refusals := await self._refusals(arguments):
            raise WeightError(f"weights {version} refused: {'; '.join(refusals)}")
        apply = self._apply_at_once if self._steps_are_whole() else self._apply_in_turn
        stall_s = await apply(llm, version)
        await self._call(llm.collective_rpc("release_staged_weights"))
        return Update(version, stall_s)

    def _steps_are_whole(self) -> bool:
        """Whether a pause holds as soon as the engine core takes the call, and one worker alone can end the engine.

        It holds then because no batch is in flight between two steps. Clearing the cache waits for an idle core.
        """
        vllm_config = self._running().vllm_config
        one_worker = vllm_config.parallel_config.world_size == 1
        return one_worker and vllm_config.max_concurrent_batches == 1 and self._actors.weight_update != "recompute"

    async def _apply_at_once(self, llm: Any, version: Version) -> float:
        """Pause, load, label and resume without waiting for answers; returns the stall in seconds.

        The core takes its calls in their order, between two steps. If the load fails, the next step fails
        in the worker: no token gets the label.
        """
        calls = [
            asyncio.ensure_future(call)
            for call in (
                llm.collective_rpc("start_stall_timer"),  # before the pause: never too short
                llm.pause_generation(mode="keep", clear_cache=False),
                llm.collective_rpc("load_staged_weights", args=(str(version),)),
                llm.update_weight_version(str(version)),
                llm.resume_generation(),
                llm.collective_rpc("read_stall_timer"),
            )
        ]
        # The answer to the pause is not awaited: after a step that finished a request it comes when the core is idle.
        timer, _, *others = calls
        try:
            async with self._ended_if_it_fails(version):
                _, loaded, _, _, [stall_s] = await self._call(asyncio.gather(timer, *others))
                _check_loaded(loaded, version)
        finally:
            for call in calls:
                call.cancel()
        self._version = version
        return float(stall_s)

    async def _apply_in_turn(self, llm: Any, version: Version) -> float:
        """Pause, load, label and resume, each after the answer to the one before; returns the stall in seconds."""
        await self._call(llm.sleep(level=0, mode="keep"))  # as `pause_generation`, without its 20 ms
        # Batches in flight are drained, and labelled, before the pause is answered. Both answers take the same path,
        # so the time between them is the time between the two events in the engine core.
        paused_at = time.monotonic()
        async with self._ended_if_it_fails(version):
            # The core answers calls in their order. The second one does not wait for the answer to the first: an engine
            # that did not load the version makes no token with its label, because it ends.
            loaded, _ = await asyncio.gather(
                self._call(llm.collective_rpc("load_staged_weights", args=(str(version),))),
                self._call(llm.update_weight_version(str(version))),
            )
            _check_loaded(loaded, version)
            if self._actors.weight_update == "recompute":
                await self._forget_keys(llm)
        self._version = version
        await self._call(llm.wake_up(tags=["scheduling"]))
        return time.monotonic() - paused_at

    async def _forget_keys(self, llm: Any) -> None:
        """Have each sequence computed again from its prompt. Raises RuntimeError if vLLM cannot."""
        if not await self._call(llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)):
            raise RuntimeError("vLLM could not discard the keys of the weights before")

    @asynccontextmanager
    async def _ended_if_it_fails(self, version: Version) -> AsyncIterator[None]:
        """End the engine if the block fails: it may hold a part of the version."""
        try:
            yield
        except BaseException as error:
            self._cause = f"weights {version} were loaded in part: {error}"
            await self.stop()
            raise EngineDied(self._cause) from error

    async def _refusals(self, arguments: tuple[object, ...]) -> list[str]:
        """Why workers cannot load a version. Afterwards all its pages are mapped where workers can load it."""
        llm = self._running()
        async with within(
            self._actors.stall_deadline_s, f"the workers of {self._model.path} to map weights (actors.stall_deadline_s)"
        ):
            while True:
                answers = await self._call(llm.collective_rpc("check_staged_weights", args=arguments))
                if None not in answers:
                    return [answer for answer in answers if answer]
                await asyncio.sleep(PAGES_POLL_S)

    @asynccontextmanager
    async def drained(self) -> AsyncIterator[None]:
        """Raises EngineDied when the engine died."""
        llm = self._running()
        try:
            # The cache is cleared too: requests that wait have the salt of the version before.
            await self._unless_dead(llm.pause_generation(mode="wait"))
            yield
        finally:
            if self._llm is not None:
                await self._call(llm.resume_generation())

    async def score(self, token_ids: Sequence[int]) -> Floats:
        """Score a prompt before all waiting ones. vLLM samples one token after it, which no counter counts.

        Raises:
            EngineDied: the engine died, now or earlier.
        """
        from vllm.inputs.engine import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError

        llm = self._running()
        prompt = list(token_ids[: self._start.max_model_len - 1])
        salted = tokens_input(prompt, cache_salt=str(self._version))
        self._scored += 1
        self._gauge.scores(len(prompt))
        name = f"score/{self._scored}"
        try:
            collector = await llm.add_request(name, salted, scoring_params(), priority=SCORING_PRIORITY)
            found = (await collector.get()).prompt_logprobs
        except asyncio.CancelledError:
            await llm.abort(name)
            raise
        except EngineDeadError:
            raise EngineDied(f"the engine died while it scored: {self._cause_of_death()}") from None
        return np.array([found[n][token].logprob for n, token in enumerate(prompt) if n], np.float32)

    async def _call(self, request: Awaitable[T]) -> T:
        """Await an answer of the engine core for one stall deadline, or raise EngineDied when the core dies."""
        async with within(
            self._actors.stall_deadline_s, f"the engine core of {self._model.path} to answer (actors.stall_deadline_s)"
        ):
            return await self._unless_dead(request)

    async def _unless_dead(self, request: Awaitable[T]) -> T:
        """Await an answer of the engine core, or raise EngineDied when the core dies."""
        from vllm.v1.engine.exceptions import EngineDeadError

        answer = asyncio.ensure_future(request)
        try:
            while not (await asyncio.wait({answer}, timeout=LIVENESS_POLL_S))[0]:
                if self._running().errored:
                    raise self._died()
            return answer.result()
        except EngineDeadError:
            raise self._died() from None
        finally:
            answer.cancel()

    def _died(self) -> EngineDied:
        return EngineDied(f"the engine of {self._model.path} died: {self._cause_of_death()}")

    def _cause_of_death(self) -> str:
        """The error that ended the engine's processes, from their log, if they have raised one."""
        return death_cause(self._output.read()) or self._cause

    # --- state for the actor --------------------------------------------------------------------

    def load(self) -> EngineLoad:
        """The load after the last step; later requests count as waiting."""
        gauge = self._gauge
        return EngineLoad(
            running=gauge.unfinished,
            waiting=gauge.in_flight - gauge.unfinished,
            kv_used=gauge.kv_used if gauge.in_flight else 0.0,
            max_running=self._actors.max_running,
        )

    def use(self) -> EngineUse:
        """The time and the cost of all requests since the start, unfinished ones included."""
        unfinished = compat.unfinished(self._llm) if self._llm is not None else ()
        now = sum((self._work_of(state) for state in unfinished), self._finished)
        # A request that has just left vLLM is not among the finished ones yet: the totals never decrease.
        self._told = self._told.at_least(now)
        moved = self._told.num_bytes + self._gauge.step_bytes
        return EngineUse(*self._gauge.times(), self._told.flops, moved, self._gauge.scored_s)

    def _work_of(self, state: Any) -> AnswerWork:
        """The work for an unfinished request so far."""
        if self._cost is None:
            return AnswerWork()
        return self._cost.answer(state.prompt_len, state.detokenizer.num_output_tokens(), state.num_cached_tokens)

    @property
    def version(self) -> Version:
        """The version that computes the next token."""
        return self._version

    @property
    def tokens_generated(self) -> int:
        """Completion tokens sampled since start, unfinished requests included."""
        # The token after a scored prompt is taken off before it has come: without this the count would fall by one, and
        # the orchestrator would take the actor for one that has started again.
        self._generated = max(self._generated, self._gauge.tokens - self._scored)
        return self._generated

    @property
    def tokens_aborted(self) -> int:
        """The part of `tokens_generated` whose request was cancelled before it finished."""
        return self._aborted

    async def stop(self) -> None:
        """End all processes of the engine and remove their shared memory, within seconds, also after a failed start."""
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown, 0)
            del llm
            gc.collect()  # a client in a reference cycle would log an error at the end of the interpreter
        await asyncio.to_thread(self._start.processes.end)


def _check_loaded(answers: Sequence[str], version: Version) -> None:
    """Raises RuntimeError unless all workers have loaded the version."""
    if set(answers) != {str(version)}:
        raise RuntimeError(f"its workers answered {answers}")
