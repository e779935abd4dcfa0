from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import batch_shared as firing
from fakes.cases import (
    case,
    healthy,
    host_contention,
    queued,
    with_envelope,
    with_gpu,
    with_phases,
    with_server,
    with_timeline,
)
from fakes.cause_tests import fires, lacks, quiet
from fakes.gpu_cases import gpu_case
from slowtok.detectors.case.case import Case, Neighbours
from slowtok.detectors.case.engine import EngineActivity
from slowtok.detectors.case.finding import UNNAMED
from slowtok.detectors.causes.server import batch_shared
from slowtok.detectors.diagnosis.diagnose import diagnose


def sharing(others: int, ms_per_token: float) -> Case:
    neighbours = Neighbours(in_flight_at_send=others, decode_mean=others, decode_max=others)
    return replace(case(ms_per_token=ms_per_token), neighbours=neighbours)


def llama_29175(*, mean: float = 0.9, most: int = 1, **server: Any) -> Case:
    """ggml-org/llama.cpp#29175: another's prompt stops the stream for 8 s (-b 4096)."""
    quick = gpu_case(completion=1000)
    begin_s = quick.phases.decode_from_at_s or 0.0
    times = tuple(begin_s + i * 0.0078 + (8.0 if i >= 400 else 0.0) for i in range(1000))
    took_s = times[-1] - begin_s
    paused = with_timeline(quick, token_at_s=times)
    paused = with_phases(paused, decode_s=took_s, decode_tps=999 / took_s, decode_to_at_s=times[-1])
    paused = with_server(paused, slots=8, batch_tokens=4096, **server)
    neighbours = Neighbours(decode_mean=mean, decode_max=most, counted=True)
    return replace(paused, neighbours=neighbours)


QUIET = [
    pytest.param(llama_29175(mean=0.0, most=0), id="a pause, and nobody else is there"),
    pytest.param(llama_29175(mean=0.3), id="a pause for far longer than anybody was there"),
    pytest.param(
        replace(llama_29175(mean=0.49), activity=EngineActivity(span_s=20.0, preemptions=1)),
        id="the engine threw it out",
    ),
    pytest.param(
        replace(firing(), neighbours=Neighbours(decode_mean=0.4, decode_max=2, counted=True)),
        id="a neighbour for less than half of the decode",
    ),
    pytest.param(
        replace(queued(), neighbours=Neighbours(in_flight_at_send=3, counted=True)),
        id="others came first and were gone",
    ),
    pytest.param(host_contention(), id="another process, not another request"),
]
FIRING = [
    pytest.param(
        firing(),
        6.232 * 0.5,
        "normal and not a fault",
        id="measured: two streams on a CPU; 0.52 of decode was lost",
    ),
    pytest.param(
        sharing(2, 18.97),
        8.518 * 0.667,
        "decoded 2 other requests at",
        id="measured: three streams on a CPU; 0.66 was lost",
    ),
    pytest.param(
        sharing(3, 20.32),
        9.124 * 0.75,
        "--parallel 1",
        id="measured: four streams on a CPU; 0.67 was lost",
    ),
    pytest.param(
        with_gpu(with_envelope(sharing(1, 117.6), read_bytes=34.8e9, kv_bytes=2.2e9)),
        52.80 * 0.0561,
        "tokens/s where it would get about",
        id="llama.cpp#13627: two streams on a GPU cost each 6 %",
    ),
    pytest.param(
        llama_29175(),
        8.0 + 0.2,
        "paused for 8.0 s while their prompts were computed",
        id="llama.cpp#29175: another's prompt",
    ),
    pytest.param(
        llama_29175(mean=0.49, kind="vllm"),
        8.0,
        "--max-num-batched-tokens 1024 and --enable-chunked-prefill (4096 now)",
        id="another's prompt, for a moment",
    ),
    pytest.param(
        llama_29175(kind="ollama"), 8.0 + 0.2, "OLLAMA_NUM_PARALLEL=1", id="no batch size to change"
    ),
]
MISSING = [
    pytest.param(
        replace(healthy(), neighbours=Neighbours()),
        "other requests at the engine",
        id="nobody through the proxy, and the engine was not looked at",
    ),
    pytest.param(
        with_phases(llama_29175(mean=0.49), decode_tps=None), "decode rate", id="paused, no rate"
    ),
    pytest.param(
        with_gpu(with_envelope(firing(), read_bytes=None)),
        "bytes read per token",
        id="weights not known, on a GPU",
    ),
    pytest.param(
        with_gpu(with_envelope(firing(), kv_bytes=None)),
        "KV bytes read per token",
        id="KV cache not known, on a GPU",
    ),
    pytest.param(with_phases(firing(), decode_tps=None), "decode rate", id="no rate"),
    pytest.param(with_phases(firing(), decode_s=None), "decode time", id="no decode time"),
]


test_quiet = quiet(batch_shared, QUIET)
test_fires = fires(batch_shared, "lost_s said", FIRING, phase="decode")
test_names_the_missing_fact = lacks(batch_shared, MISSING)


def test_a_decode_that_was_not_slow_is_not_put_into_words() -> None:
    normal = sharing(2, 5.0)
    diagnosis = diagnose(normal)

    assert batch_shared.detect(normal) is UNNAMED
    assert (diagnosis.verdict, diagnosis.findings) == ("normal", {})
    assert "batch-shared" not in diagnosis.cleared
    assert "queued" in diagnosis.cleared
