"""A long case is judged by a few of its samples, and judged the same."""

from dataclasses import replace

import pytest

from fakes.cases import host_contention, with_host
from fakes.clock_cases import at_clock, counting, known
from fakes.gpu_cases import HEALTHY_MS, gpu_case, with_readings
from slowtok.detectors.analysis.gpu.gpu_window import gained_ratio
from slowtok.detectors.analysis.host_window import mean, run_queue
from slowtok.detectors.case.case import Case
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.detectors.diagnosis.downsample import MAX_SAMPLES, downsampled


def long_case() -> Case:
    """A prefill of 3 s before 260 s of decode."""
    return known(gpu_case(ms_per_token=2 * HEALTHY_MS, prefill_s=3.0, completion=16_700))


def seldom(before: Case) -> Case:
    """What is read once a second is in every tenth sample only, and in the last."""
    kept = tuple(
        s if at % 10 == 3 else replace(s, processes=None, pcie_width=None, pcie_generation=None)
        for at, s in enumerate(before.gpu)
    )
    return replace(before, gpu=kept)


def said(case: Case) -> tuple[str, list[str]]:
    found = diagnose(case)
    return found.verdict, [c for c, f in found.findings.items() if not f.informational]


def test_a_short_case_is_as_it_was() -> None:
    case = gpu_case()

    assert downsampled(case) is case


def test_each_stretch_keeps_a_few_in_their_order() -> None:
    case = long_case()
    few = downsampled(case)

    assert few.gpu_during("prefill") == case.gpu_during("prefill")
    assert MAX_SAMPLES / 2 < len(few.gpu_during("decode")) <= MAX_SAMPLES
    assert len(few.host) < 2 * MAX_SAMPLES
    assert [s.at_s for s in few.gpu] == sorted(s.at_s for s in few.gpu)
    assert [s.at_s for s in few.host] == sorted(s.at_s for s in few.host)


def test_what_is_read_once_a_second_is_kept() -> None:
    few = downsampled(seldom(long_case()))
    listed = [s for s in few.gpu_during("decode") if s.processes is not None]

    assert len(listed) >= 0.9 * len(few.gpu_during("decode"))


def test_counters_gain_the_same() -> None:
    case = with_readings(long_case(), throttled_power_ns=counting(0.6))
    few = downsampled(case)

    assert gained_ratio(few.gpu_during("decode"), lambda s: s.throttled_power_ns) == pytest.approx(
        0.6, rel=0.01
    )


def test_one_host_sample_stands_for_the_time_of_its_neighbours() -> None:
    case = with_host(long_case(), server_cpu_cores=1.7)
    few = downsampled(case)
    before, after = case.host_during("decode"), few.host_during("decode")

    assert sum(s.span_s for s in after) == pytest.approx(sum(s.span_s for s in before), rel=0.01)
    assert mean(after, lambda s: s.server_cpu_cores) == pytest.approx(1.7)


def test_its_other_readings_are_those_of_one_of_them() -> None:
    case = long_case()
    busy = tuple(replace(s, server_cpu_cores=at / 1000) for at, s in enumerate(case.host))
    few = downsampled(replace(case, host=busy)).host
    by_cores = {s.server_cpu_cores: s for s in busy}

    assert len(few) < len(busy)
    for sample in few:
        one = by_cores[sample.server_cpu_cores]
        assert sample == replace(one, at_s=sample.at_s, span_s=sample.span_s)


def test_two_gpus_keep_as_many_each() -> None:
    one = long_case()
    both = replace(one, gpu=one.gpu + tuple(replace(s, index=1) for s in one.gpu))
    few = downsampled(both)

    counts = [sum(s.index == index for s in few.gpu) for index in (0, 1)]
    assert counts[0] == counts[1]
    assert max(counts) < 2 * MAX_SAMPLES


@pytest.mark.parametrize("times", [1.0, 1.45])
def test_a_long_request_is_judged_as_a_short_one(times: float) -> None:
    short = at_clock(900, times=times, reasons=0x20, throttled_sw_thermal_ns=counting(0.98))
    long = known(gpu_case(ms_per_token=times * HEALTHY_MS, completion=20_000))
    long = with_readings(
        long, sm_clock_mhz=900, reasons=0x20, throttled_sw_thermal_ns=counting(0.98)
    )

    assert said(long) == said(short)


def test_a_run_queue_is_the_same() -> None:
    host = host_contention().host
    span_s = host[0].span_s
    many = tuple(
        replace(host[at % len(host)], at_s=host[0].at_s + at * span_s) for at in range(2000)
    )
    case = replace(host_contention(), host=many)
    to_s = many[-1].at_s
    case = replace(case, phases=replace(case.phases, decode_to_at_s=to_s))

    assert run_queue(downsampled(case), "decode").taken_ratio == pytest.approx(
        run_queue(case, "decode").taken_ratio, rel=0.01
    )
