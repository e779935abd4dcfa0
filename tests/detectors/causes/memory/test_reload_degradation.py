from dataclasses import replace

import pytest

from fakes.cases import with_envelope, with_server
from fakes.cause_tests import fires, lacks, quiet
from fakes.gpu_cases import GIB, gpu_case, with_model
from fakes.memory_cases import (
    SPLIT_HOST,
    card,
    context_oversized,
    model_too_big,
    ollama,
    partial_offload,
    vram_held_by_others,
)
from fakes.memory_cases import reload_degradation as firing
from slowtok.detectors.case.case import Case, History
from slowtok.detectors.causes.memory import reload_degradation


def with_loads(case: Case, now: dict[str, object], before: dict[str, object]) -> Case:
    """The case with these changes in its newest load and in the one before."""
    newest, older = case.history.loads
    loads = (replace(newest, **now), replace(older, **before))  # type: ignore[arg-type]
    return replace(case, history=History(loads=loads))


def nothing_there() -> Case:
    """All of it was on the GPU before, and nothing is now."""
    case = gpu_case(
        ms_per_token=160.0,
        completion=200,
        server=replace(ollama(8192, loaded=6.4, on_gpu=0.0), gpu_indices=()),
        gpu=card(0, busy_ratio=0.0),
        host=SPLIT_HOST,
    )
    return with_loads(replace(case, history=firing().history), {"server_gpu_bytes": 0}, {})


QUIET = [
    pytest.param(
        replace(gpu_case(), history=firing().history), id="a worse load, but all of it is there"
    ),
    pytest.param(replace(firing(), history=History()), id="no earlier load was seen"),
    pytest.param(
        replace(firing(), history=History(loads=firing().history.loads[:1])), id="the first load"
    ),
    pytest.param(with_loads(firing(), {}, {"context_tokens": 4096}), id="another context before"),
    pytest.param(with_loads(firing(), {}, {"model": "llama3:8b-q2"}), id="another quantisation"),
    pytest.param(
        with_loads(firing(), {}, {"server_gpu_bytes": int(4.9 * GIB)}), id="as little as before"
    ),
    pytest.param(
        with_loads(firing(), {"server_gpu_bytes": None}, {}), id="not known what it holds now"
    ),
    pytest.param(
        with_loads(nothing_there(), {"free_before_bytes": 23 * GIB}, {}),
        id="there was room, and nothing was put there: cpu-fallback",
    ),
    pytest.param(model_too_big(), id="it does not fit"),
    pytest.param(context_oversized(), id="not with that context"),
    pytest.param(vram_held_by_others(), id="others hold it"),
    pytest.param(partial_offload(), id="told so"),
    pytest.param(with_server(firing(), local=False), id="the engine is on another machine"),
]

FIRING = [
    pytest.param(
        firing(),
        14.4,
        0.78,
        "put 4.8 GiB of the model on the GPU",
        "run 'ollama stop",
        id="a part of it",
    ),
    pytest.param(
        with_loads(nothing_there(), {"free_before_bytes": 2 * GIB}, {}),
        30.2,
        0.78,
        "put 0.0 GiB of the model on the GPU",
        "restart Ollama",
        id="there was no room at that time",
    ),
]

MISSING = [
    pytest.param(with_model(firing(), file_bytes=None), "size of the model file", id="no size"),
    pytest.param(
        with_envelope(firing(), expected_tps=None),
        "decode rate expected of this GPU",
        id="no expectation",
    ),
]


test_quiet = quiet(reload_degradation, QUIET)
test_fires = fires(
    reload_degradation, "lost_s confidence summary remedy", FIRING, phase="decode", rel=0.04
)
test_names_the_missing_fact = lacks(reload_degradation, MISSING)
