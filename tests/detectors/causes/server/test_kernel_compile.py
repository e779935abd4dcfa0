from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import with_host, with_phases, with_server, with_tokens
from fakes.cause_tests import found, missing_fact, quiet
from fakes.prompt_cases import kernel_compile as firing
from slowtok.detectors.case.case import Case, Neighbours
from slowtok.detectors.case.machine import GpuFacts, GpuSample
from slowtok.detectors.causes.server import kernel_compile

BEGAN = 1.8e9  # when the request came


def served(before: Case, requests: int, alike: int) -> Case:
    history = replace(before.history, served_before=requests, served_alike=alike)
    return replace(before, history=history)


def on_gpu(before: Case, **reading: Any) -> Case:
    """The case with samples of a GPU in its prefill."""
    begin_s = before.phases.prefill_from_at_s or 0.0
    samples = tuple(GpuSample(at_s=begin_s + i, index=0, **reading) for i in range(10))
    device = replace(before.device, gpus=(GpuFacts(index=0),))
    return replace(before, gpu=samples, device=device)


QUIET = [
    pytest.param(with_phases(firing(), prefill_s=0.6), id="the first, and quick: caches warm up"),
    pytest.param(served(firing(), 3, 2), id="not the first: it stays slow"),
    pytest.param(
        with_server(firing(), started_unix_s=BEGAN - 90_000.0), id="the engine runs since yesterday"
    ),
    pytest.param(
        on_gpu(with_phases(firing(), prefill_s=1.8), busy_ratio=0.98),
        id="the GPU was at work, and half of it was lost: slow-prefill",
    ),
    pytest.param(
        on_gpu(with_server(firing(), batch_tokens=16), busy_ratio=0.98),
        id="the GPU was at work on batches of 16 tokens",
    ),
    pytest.param(with_phases(firing(), load_s=3.0), id="it was loading"),
    pytest.param(with_server(firing(), slept=True), id="it had put the model away"),
    pytest.param(
        replace(firing(), neighbours=Neighbours(in_flight_at_send=2)), id="others were there"
    ),
    pytest.param(with_server(firing(), kind="llama-server"), id="its code was there, nothing seen"),
    pytest.param(with_tokens(firing(), prompt=None), id="no usage"),
    pytest.param(
        replace(firing(), history=replace(firing().history, best_prefill_tps=None)),
        id="nothing is expected here",
    ),
    pytest.param(
        with_host(on_gpu(firing(), busy_ratio=0.1), server_cpu_cores=0.1),
        id="neither GPU nor CPU was at work: nobody compiled",
    ),
]


test_quiet = quiet(kernel_compile, QUIET)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        pytest.param(firing(), "the first request since", id="the first after the start"),
        pytest.param(served(firing(), 4, 0), "of about this length", id="the first of its length"),
        pytest.param(
            on_gpu(firing(), busy_ratio=0.98),
            "the first request since",
            id="kernels are tuned, which keeps the GPU busy",
        ),
        pytest.param(
            on_gpu(with_server(firing(), kind="llama-server"), busy_ratio=0.05),
            "the first request since",
            id="llama.cpp, whose GPU waited",
        ),
    ],
)
def test_fires(case: Case, said: str) -> None:
    finding = found(kernel_compile, case)

    assert finding.phase == "prefill"
    assert said in finding.summary
    assert finding.lost_s == pytest.approx(12.0 - 560 / 1000)


def test_a_gpu_that_waits_makes_it_surer() -> None:
    sure = found(kernel_compile, on_gpu(firing(), busy_ratio=0.0))
    unsure = found(kernel_compile, firing())

    assert sure.confidence > unsure.confidence


@pytest.mark.parametrize("kind", ["ollama", "lm-studio", "unknown"])
def test_an_engine_that_may_load_on_demand_has_to_tell_when_it_was_done(kind: str) -> None:
    streamed = with_phases(on_gpu(firing(), busy_ratio=0.0), source="stream", load_s=None)

    said = missing_fact(kernel_compile, with_server(streamed, kind=kind))

    assert said == "whether the model was loaded before the request"
    told = with_phases(with_server(streamed, kind=kind), load_s=0.02)
    assert found(kernel_compile, told).phase == "prefill"


def test_names_the_missing_fact() -> None:

    assert missing_fact(kernel_compile, with_phases(firing(), prefill_s=None)) == "prefill time"
