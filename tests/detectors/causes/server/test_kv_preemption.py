from dataclasses import replace

import pytest

from fakes.cases import with_server, with_timeline
from fakes.cause_tests import fires, found, lacks, quiet
from fakes.engine_cases import VLLM, with_gaps
from fakes.engine_cases import kv_preemption as firing
from fakes.gpu_cases import gpu_case, with_model
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.engine import EngineActivity
from slowtok.detectors.causes.server import kv_preemption


def without_activity(before: Case) -> Case:
    return replace(before, activity=None)


QUIET = [
    pytest.param(firing(preemptions=0), id="it stood still, but nobody was thrown out"),
    pytest.param(
        with_gaps(firing(), [0.01] * 600), id="another request was thrown out, not this one"
    ),
    pytest.param(firing(kv_used_max_ratio=0.60), id="the cache had room"),
    pytest.param(
        replace(
            with_gaps(gpu_case(server=VLLM), [0.01] * 300 + [6.0] + [0.01] * 100),
            activity=EngineActivity(span_s=10.0, preemptions=0, kv_used_max_ratio=0.97),
        ),
        id="a neighbour's long prefill at a full cache",
    ),
    pytest.param(without_activity(with_server(firing(), kind="llama-server")), id="no such engine"),
]
FIRING = [
    pytest.param(firing(), 9.98, 0.93, "preempted requests 3 times", id="twice, at a full cache"),
    pytest.param(firing(), 9.98, 0.93, "first at token 301", id="says from where on"),
    pytest.param(
        firing(),
        9.98,
        0.93,
        "--gpu-memory-utilization 0.95 (room for about 9,830 tokens more)",
        id="more of the GPU",
    ),
    pytest.param(
        firing(), 9.98, 0.93, "40,000 instead of 20,000 tokens", id="half the bytes per token"
    ),
    pytest.param(
        firing(), 9.98, 0.93, "--max-num-seqs 7 (others wait instead)", id="fewer at once"
    ),
    pytest.param(firing(), 9.98, 0.93, "--max-model-len 2500", id="shorter ones"),
    pytest.param(
        firing(replace(VLLM, kv_type_k="fp8", gpu_memory_ratio=0.97)),
        9.98,
        0.93,
        "Restart vLLM with --max-num-seqs 7",
        id="what is done already is not proposed",
    ),
    pytest.param(
        firing(kv_used_max_ratio=0.93, preemptions=1),
        9.98,
        0.52,
        "preempted requests 1 time and",
        id="nearly full in readings of once a second: less sure",
    ),
    pytest.param(
        firing(kv_used_max_ratio=None),
        9.98,
        0.86,
        "The KV cache had no room left",
        id="counter only",
    ),
    pytest.param(
        firing(replace(VLLM, kind="sglang")), 9.98, 0.93, "fewer requests at once", id="SGLang"
    ),
    pytest.param(
        firing(running_max=None),
        9.98,
        0.93,
        "or a smaller --max-num-seqs or --max-model-len",
        id="not counted how many ran",
    ),
    pytest.param(
        firing(replace(VLLM, kv_cache_tokens=None)),
        9.98,
        0.93,
        "(half the bytes per token), or --max-num-seqs 7 (others wait instead).",
        id="size of the cache not told",
    ),
    pytest.param(
        with_model(firing(), kv_bytes_per_token=None),
        9.98,
        0.93,
        "--gpu-memory-utilization 0.95, or",
        id="bytes per token not known",
    ),
]
MISSING = [
    pytest.param(
        without_activity(with_server(firing(), kind="sglang")),
        "preemptions counted by the engine",
        id="an engine that may throw requests out, and does not tell",
    ),
    pytest.param(without_activity(firing()), "preemptions counted by the engine", id="no counters"),
    pytest.param(firing(preemptions=None), "preemptions counted by the engine", id="not counted"),
    pytest.param(
        with_timeline(firing(), token_at_s=()), "arrival times of the tokens", id="not streamed"
    ),
]


test_quiet = quiet(kv_preemption, QUIET)
test_fires = fires(kv_preemption, "lost_s confidence said", FIRING, phase="decode")
test_names_the_missing_fact = lacks(kv_preemption, MISSING)


def test_stalls_prove_no_more_than_was_counted() -> None:
    counted_twice, counted_once = (
        found(kv_preemption, firing(preemptions=count)) for count in (2, 1)
    )

    assert counted_twice.proof_s == pytest.approx(counted_twice.lost_s)
    assert counted_once.proof_s == pytest.approx(5.99, rel=0.01)
