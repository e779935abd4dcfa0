"""Windows of a case, and the arithmetic that every reader of it needs."""

from dataclasses import replace

import pytest

from fakes.cases import SENT_AT_S, case, with_phases, with_timeline
from slowtok.detectors.case.case import Phase, Tokens
from slowtok.detectors.case.machine import GpuSample, HostSample


@pytest.mark.parametrize(
    ("tokens", "processed"),
    [
        (Tokens(), None),
        (Tokens(cached=5), None),
        (Tokens(prompt=10), 10),
        (Tokens(prompt=10, cached=4), 6),
        (Tokens(prompt=10, cached=12), 0),
    ],
)
def test_processed_tokens(tokens: Tokens, processed: int | None) -> None:
    assert tokens.processed == processed


@pytest.mark.parametrize(
    ("sample", "others"),
    [
        (HostSample(at_s=0, span_s=1), None),
        (HostSample(at_s=0, span_s=1, cpu_busy_cores=2.0), None),
        (HostSample(at_s=0, span_s=1, cpu_busy_cores=2.0, server_cpu_cores=1.5), 0.5),
        (HostSample(at_s=0, span_s=1, cpu_busy_cores=1.4, server_cpu_cores=1.5), 0.0),
    ],
)
def test_cores_of_others(sample: HostSample, others: float | None) -> None:
    assert sample.others_cpu_cores == others


def test_windows_follow_each_other() -> None:
    waited = case(queue_s=1.0, prefill_s=2.0, ms_per_token=10)

    assert waited.window("queue") == (SENT_AT_S, SENT_AT_S + 1)
    assert waited.window("prefill") == (SENT_AT_S + 1, SENT_AT_S + 3)
    assert waited.window("decode") == pytest.approx((SENT_AT_S + 3, SENT_AT_S + 7.49))
    assert waited.window("delivery") is None, "all was there when the last byte came"


def test_window_of_what_is_not_known_is_none() -> None:
    untimed = with_phases(case(), prefill_from_at_s=None)

    assert untimed.window("queue") is None
    assert untimed.window("prefill") is None
    assert untimed.host_during("prefill") == ()
    assert untimed.gpu_during("prefill") == ()


def test_delivery_begins_at_the_last_byte() -> None:
    slow = with_timeline(case(), last_byte_at_s=2000.0, delivered_at_s=2003.0)

    assert slow.window("delivery") == (2000.0, 2003.0)


@pytest.mark.parametrize(
    ("at_s", "phase"),
    [(1010.4, None), (1010.6, "prefill"), (1014.0, "prefill"), (1014.4, "prefill"),
     (1014.6, "decode")],
)  # fmt: skip
def test_host_sample_counts_where_more_than_half_of_it_lies(at_s: float, phase: Phase) -> None:
    before = replace(
        with_phases(
            case(), prefill_from_at_s=1010.0, decode_from_at_s=1014.0, decode_to_at_s=1020.0
        ),
        host=(HostSample(at_s=at_s, span_s=1.0),),
    )
    counted: list[Phase] = ["prefill", "decode"]
    found = [p for p in counted if before.host_during(p)]

    assert found == [p for p in counted if p == phase]


def test_gpu_samples_inside_the_phase() -> None:
    seen = replace(case(prefill_s=2.0), gpu=tuple(
        GpuSample(at_s=SENT_AT_S + at_s, index=0) for at_s in (-0.1, 0.0, 1.9, 2.1)
    ))  # fmt: skip

    assert [s.at_s - SENT_AT_S for s in seen.gpu_during("prefill")] == pytest.approx([0.0, 1.9])
