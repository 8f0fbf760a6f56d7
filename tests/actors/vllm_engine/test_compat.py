"""Each undocumented part of vLLM that an engine uses is still there. A test that fails here names what vLLM changed."""

from __future__ import annotations

import dis
import inspect
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from olmorl.actors.vllm_engine import compat

pytestmark = [pytest.mark.engine, pytest.mark.doors]


def test_importing_it_imports_no_vllm() -> None:
    """The early process of an engine core imports this file before its environment is known."""
    program = "import sys, olmorl.actors.vllm_engine.compat; sys.exit('vllm' in sys.modules or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_vllm_spawns_its_core_with_the_context_that_is_replaced() -> None:
    from vllm.v1.engine import utils

    assert not inspect.signature(utils.get_mp_context).parameters
    source = inspect.getsource(utils.CoreEngineProcManager.__init__)
    assert "get_mp_context()" in source and "context.Process(" in source


def test_vllm_keeps_the_processes_of_its_core() -> None:
    from vllm.v1.engine import core_client, utils

    assert "engine_manager" in core_client.BackgroundResources.__dataclass_fields__
    assert "self.processes" in inspect.getsource(utils.CoreEngineProcManager.__init__)
    manager = SimpleNamespace(processes=[SimpleNamespace(pid=1), SimpleNamespace(pid=2)])
    llm = SimpleNamespace(engine_core=SimpleNamespace(resources=SimpleNamespace(engine_manager=manager)))
    assert compat.core_pids(llm) == [1, 2]


def test_vllm_keeps_the_state_of_each_request_by_both_of_its_names() -> None:
    from vllm.v1.engine import detokenizer, output_processor

    source = inspect.getsource(output_processor.OutputProcessor.__init__)
    assert "self.request_states" in source and "self.external_req_ids" in source
    state = inspect.getsource(output_processor.RequestState.__init__)
    for name in ("prompt_len", "num_cached_tokens", "detokenizer"):
        assert f"self.{name}" in state
    assert callable(detokenizer.IncrementalDetokenizer.num_output_tokens)
    processor = SimpleNamespace(request_states={"a-1": "state"}, external_req_ids={"a": ["a-1"]})
    llm: Any = SimpleNamespace(output_processor=processor)
    assert compat.unfinished(llm) == compat.unfinished(llm, "a") == ["state"]
    assert compat.unfinished(llm, "b") == []


@pytest.mark.parametrize("name", ["messages_full_converter", "message_stream_converter"])
def test_the_converters_of_anthropics_api_use_no_server(name: str) -> None:
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    method = getattr(AnthropicServingMessages, name)
    assert len(inspect.signature(method).parameters) == 2
    assert "self" not in [each.argval for each in dis.get_instructions(method)]


def test_an_executor_takes_the_workers_of_one_node() -> None:
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProcHandle

    assert list(inspect.signature(MultiprocExecutor.__init__).parameters)[:3] == [
        "self",
        "vllm_config",
        "monitor_workers",
    ]
    assert "proc" in WorkerProcHandle.__dataclass_fields__


def test_the_experts_of_a_cpu_pack_their_weights_after_a_load() -> None:
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    assert UnquantizedMoeBackend.CPU
    source = inspect.getsource(UnquantizedFusedMoEMethod)
    assert "self.unquantized_backend" in source and "self.moe_kernel" in source
    packed: list[Any] = []
    experts = SimpleNamespace(process_weights_after_loading=packed.append)
    layer = SimpleNamespace(quant_method=SimpleNamespace(moe_kernel=SimpleNamespace(fused_experts=experts)))
    compat.pack_experts(layer)
    assert packed == [layer]
    assert not compat.packs_experts(layer)


def test_the_command_line_lists_its_options_and_raises() -> None:
    parser, options = compat.command_line()
    assert options["max_num_seqs"].option_strings == ["--max-num-seqs"]
    assert parser.parse_args(["--max-num-seqs", "3"]).max_num_seqs == 3
    with pytest.raises(ValueError, match="unrecognized"):
        parser.parse_args(["--no-such-option"])
