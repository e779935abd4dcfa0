from dataclasses import replace

import pytest

from fakes.cases import with_envelope, with_server
from fakes.cause_tests import fires, found, lacks, quiet
from fakes.gpu_cases import GIB, MIB, SERVER, gpu_case, with_model, with_readings
from fakes.memory_cases import (
    SPLIT_HOST,
    card,
    context_oversized,
    memory_untold,
    model_too_big,
    ollama,
    partial_offload,
    reload_degradation,
)
from fakes.memory_cases import vram_held_by_others as firing
from slowtok.detectors.case.case import Case, History, ModelLoad
from slowtok.detectors.case.machine import GpuProcess
from slowtok.detectors.causes.memory import vram_held_by_others

LEFT = GpuProcess(pid=31, name="ComfyUI", memory_bytes=19 * GIB)
VLLM = replace(SERVER, kind="vllm", gpu_layers=None, gpu_memory_ratio=0.3)


def beside(other: GpuProcess, *, on_gpu: float = 3.6) -> Case:
    """An 8B model of which Ollama put a part on a card that another program fills; computed."""
    return gpu_case(
        ms_per_token=60.0,
        completion=400,
        server=ollama(8192, loaded=6.4, on_gpu=on_gpu),
        gpu=card(int((on_gpu + 0.3) * 1024), other),
        host=SPLIT_HOST,
    )


def with_siblings() -> Case:
    """Another model of the same Ollama holds what is missing; computed."""
    case = beside(replace(LEFT, memory_bytes=100 * MIB))
    server = replace(case.server, loaded_models=("llama-3-8b:latest", "qwen3:32b"))
    return with_readings(
        replace(case, server=server),
        processes=card(int((3.6 + 0.3 + 18.9) * 1024)).processes,
        free_bytes=600 * MIB,
    )


def gone_since() -> Case:
    """The other program left after the load."""
    case = beside(replace(LEFT, memory_bytes=100 * MIB))
    load = ModelLoad(age_s=300.0, model="llama-3-8b", context_tokens=8192, others_bytes=19 * GIB)
    return replace(case, history=History(loads=(load,)))


QUIET = [
    pytest.param(
        gpu_case(gpu=card(6_700, LEFT, busy_ratio=0.97)),
        id="others hold much, and all of it is on the GPU",
    ),
    pytest.param(gpu_case(server=VLLM, gpu=card(9_000, LEFT)), id="vLLM beside another program"),
    pytest.param(beside(replace(LEFT, memory_bytes=300 * MIB)), id="a desktop's few hundred MiB"),
    pytest.param(model_too_big(), id="it would not fit an empty card"),
    pytest.param(context_oversized(), id="not with that context"),
    pytest.param(reload_degradation(), id="nobody holds it"),
    pytest.param(partial_offload(), id="told so"),
    pytest.param(with_server(firing(), local=False), id="the engine is on another machine"),
]

FIRING = [
    pytest.param(
        firing(),
        38.3,
        "held 5.9 of the GPU's 23.7 GiB when the model was loaded",
        "Stop chrome.exe with pid 77 and 900 MiB, then run 'ollama stop gemma3:27b'",
        id="ollama#10823: 17.8 GiB free at load, 49 of 63 layers",
    ),
    pytest.param(
        beside(LEFT),
        20.8,
        "Other programs (ComfyUI with pid 31 and 19,456 MiB) hold 19.0",
        "Stop ComfyUI",
        id="those that hold it now",
    ),
    pytest.param(
        gone_since(),
        20.8,
        "when the model was loaded",
        ": there is room for all of it now",
        id="gone since",
    ),
    pytest.param(
        with_siblings(),
        20.8,
        "Other models of Ollama hold 19.2",
        "Unload the other models ('ollama stop qwen3:32b')",
        id="another model of the same Ollama",
    ),
]

MISSING = [
    pytest.param(
        memory_untold(),
        "GPU memory of the server",
        id="neither the engine nor the driver tells",
    ),
    pytest.param(with_model(firing(), file_bytes=None), "size of the model file", id="no size"),
    pytest.param(
        with_envelope(firing(), expected_tps=None),
        "decode rate expected of this GPU",
        id="no expectation",
    ),
]


test_quiet = quiet(vram_held_by_others, QUIET)
test_fires = fires(vram_held_by_others, "lost_s summary remedy", FIRING, phase="decode", rel=0.03)
test_names_the_missing_fact = lacks(vram_held_by_others, MISSING)


def test_what_was_seen_at_load_counts_more_than_what_is_there_now() -> None:
    now, then = (found(vram_held_by_others, case) for case in (beside(LEFT), gone_since()))

    assert now.confidence < then.confidence
