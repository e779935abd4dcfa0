from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import (
    healthy,
    prompt_cache_miss,
    queued,
    with_device,
    with_phases,
    with_server,
    with_timeline,
)
from fakes.cases import model_load as firing
from fakes.cause_tests import fires, found, lacks, quiet
from slowtok.detectors.case.case import Case, History, ModelLoad
from slowtok.detectors.case.machine import GpuFacts
from slowtok.detectors.causes.server import model_load

GIB = 2**30
CARD = (GpuFacts(index=0, total_bytes=24 * GIB),)


def after(*loads: tuple[float, str, int | None], gib: float = 10.0, **server: Any) -> Case:
    """The load of this request, and earlier ones: age, model, context."""
    seen = [(0.0, "mine", 4096), *loads]
    history = History(
        loads=tuple(
            ModelLoad(
                age_s=age_s,
                model=model,
                context_tokens=context,
                server_gpu_bytes=round(gib * GIB),
            )
            for age_s, model, context in seen
        )
    )
    slow = with_server(with_device(firing(), gpus=CARD), **{"kind": "ollama", **server})
    return replace(slow, history=history)


QUIET = [
    pytest.param(
        with_phases(healthy(), load_s=0.06), id="a warm Ollama reports tens of milliseconds"
    ),
    pytest.param(queued(), id="others were in the way"),
    pytest.param(prompt_cache_miss(), id="the engine was computing"),
    pytest.param(
        with_server(with_phases(healthy(), load_s=None), slept=None), id="no time for a load"
    ),
    pytest.param(with_phases(queued(), load_s=None), id="a wait, but the engine had the model"),
]
FIRING = [
    pytest.param(firing(), 4.0, "loading it cost about {lost}", id="the engine reports it"),
    pytest.param(
        with_phases(firing(), load_s=None),
        4.0,
        "--sleep-idle-seconds",
        id="the engine slept and then took long",
    ),
    pytest.param(
        with_server(firing(), kind="ollama", slept=None), 4.0, "OLLAMA_KEEP_ALIVE=-1", id="Ollama"
    ),
    pytest.param(
        after((90.0, "mine", 32768)),
        4.0,
        "a context of 4096 tokens was asked for, and one of 32768 before",
        id="aider#4687: another num_ctx in each request",
    ),
    pytest.param(
        after((90.0, "mine", 32768)), 4.0, "(num_ctx 32768 in each request", id="the larger one"
    ),
    pytest.param(
        after((60.0, "qwen3:32b", None), (120.0, "mine", 4096)),
        4.0,
        "load 2 of it within 10 minutes, because qwen3:32b was loaded in between",
        id="ollama#10948: models that push each other out",
    ),
    pytest.param(
        after((60.0, "other", None), (120.0, "mine", 4096)),
        4.0,
        "Both models fit at once (10.0 + 10.0 of 24.0 GiB): set OLLAMA_MAX_LOADED_MODELS=2",
        id="there is room for both",
    ),
    pytest.param(
        after((60.0, "other", None), (120.0, "mine", 4096), gib=16.0),
        4.0,
        "do not fit at once (16.0 + 16.0 of 24.0 GiB)",
        id="there is no room for both",
    ),
    pytest.param(
        with_device(after((60.0, "other", None), (120.0, "mine", 4096)), gpus=()),
        4.0,
        "Set OLLAMA_MAX_LOADED_MODELS=2 and keep_alive: -1 if both fit",
        id="the room is not known",
    ),
    pytest.param(
        after((400.0, "mine", 4096), kind="llama-server"),
        4.0,
        "because the engine had unloaded it in between. Start llama-server without",
        id="it falls asleep too soon",
    ),
    pytest.param(
        with_server(firing(), kind="llama-server", loaded_models=("other",)),
        4.0,
        "Load the model ahead of its first request (POST /models/load), and start the router",
        id="llama-server's router had not loaded it",
    ),
    pytest.param(
        with_server(
            with_phases(firing(), load_s=None),
            kind="llama-server",
            through="llama-swap",
            loaded_models=("other",),
        ),
        4.0,
        "In llama-swap's configuration give the model a longer ttl",
        id="llama-swap had not started its engine",
    ),
    pytest.param(
        after(
            (60.0, "other", None),
            (120.0, "mine", 4096),
            kind="llama-server",
            through="llama-swap",
        ),
        4.0,
        "Both models fit at once (10.0 + 10.0 of 24.0 GiB): put both into one group",
        id="llama-swap takes one out for the other",
    ),
    pytest.param(
        after((400.0, "mine", None), uptime_s=30.0),
        4.0,
        "because the engine was started again",
        id="it was started again",
    ),
]
MISSING = [
    pytest.param(
        with_server(with_phases(firing(), load_s=None), slept=None),
        "whether the model was loaded before the request",
        id="a long wait, cause not known",
    ),
    pytest.param(
        with_phases(healthy(), load_s=None, prefill_from_at_s=None),
        "start of prefill",
        id="no start of prefill",
    ),
    pytest.param(
        with_timeline(with_phases(healthy(), load_s=None), sent_at_s=None),
        "time the request was sent",
        id="never sent",
    ),
]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(firing(), id="nothing is known of earlier loads"),
        pytest.param(after(), id="the first one that was noticed"),
        pytest.param(after((601.0, "mine", 32768)), id="the one before is long ago"),
        pytest.param(after((60.0, "other", None)), id="another model's"),
    ],
)
def test_one_load_is_told_without_a_pattern(case: Case) -> None:
    finding = found(model_load, case)

    assert "within 10 minutes" not in finding.summary
    assert "keep" in finding.remedy


test_quiet = quiet(model_load, QUIET)
test_fires = fires(model_load, "lost_s said", FIRING, phase="load")
test_names_the_missing_fact = lacks(model_load, MISSING)
