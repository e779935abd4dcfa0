from dataclasses import replace

import pytest

from fakes.cases import (
    case,
    cpu_quota_of_one_core,
    healthy,
    threads_misconfigured,
    with_device,
    with_gpu,
    with_host,
    with_phases,
    with_server,
)
from fakes.cases import host_contention as firing
from slowtok.detectors.case import Case
from slowtok.detectors.finding import Finding, Missing
from slowtok.detectors.host import host_contention
from slowtok.detectors.machine import CpuUser

QUIET = [
    pytest.param(
        with_host(
            healthy(), server_cpu_cores=0.002, server_run_delay_cores=0.0004, cpu_busy_cores=0.65
        ),
        id="a server that hardly uses the CPU",
    ),
    pytest.param(healthy(), id="the machine is the server's alone"),
    pytest.param(
        with_host(healthy(), cpu_busy_cores=2.0, cpu_cores=16, server_run_delay_cores=0.02),
        id="all its threads have cores",
    ),
    pytest.param(
        with_host(healthy(), cpu_busy_cores=15.0, cpu_cores=16),
        id="others are busy, but on other cores: nobody waits",
    ),
    pytest.param(threads_misconfigured(), id="threads wait for each other, others are quiet"),
    pytest.param(cpu_quota_of_one_core(), id="the wait is a quota's, not others'"),
    pytest.param(
        with_host(healthy(), server_cpu_cores=1.0, server_run_delay_cores=0.5, cpu_busy_cores=1.05),
        id="others use less than background noise",
    ),
]
FIRING = [
    pytest.param(
        firing(),
        20.84 * (1 - (1 - 1.00 / 1.98) ** 2.68),
        "waited 51 % of the time because other processes used 1.0 of 2 cores",
        id="measured: two busy loops",
    ),
    pytest.param(
        with_host(
            case(ms_per_token=19.76),
            server_cpu_cores=1.33,
            server_run_delay_cores=0.68,
            cpu_busy_cores=1.99,
        ),
        8.872 * 0.664,
        "--threads 1",
        id="measured: one busy loop; 0.66 of decode was lost",
    ),
    pytest.param(
        with_host(
            case(ms_per_token=111.46),
            server_cpu_cores=0.66,
            server_run_delay_cores=1.34,
            cpu_busy_cores=2.0,
        ),
        50.05 * 0.950,
        "waited 67 %",
        id="measured: four busy loops; 0.94 of decode was lost",
    ),
    pytest.param(
        with_host(
            with_server(case(ms_per_token=9.56), threads=1),
            server_cpu_cores=0.68,
            server_run_delay_cores=0.33,
            cpu_busy_cores=1.99,
        ),
        4.292 * 0.328,
        "waited 33 % of the time",
        id="measured: one thread beside two busy loops; 0.29 was lost",
    ),
    pytest.param(
        with_gpu(firing()),
        20.84 * (1 - (1 - 1.00 / 1.98) ** 2.68),
        "renice",
        id="a GPU's host thread waits too",
    ),
]
MISSING = [
    pytest.param(replace(firing(), host=()), "host samples during decode", id="no samples"),
    pytest.param(
        with_host(firing(), server_run_delay_cores=None),
        "time the server's threads waited for a core",
        id="no run delay",
    ),
    pytest.param(
        with_host(firing(), server_cpu_cores=None), "CPU time of the server", id="server not mapped"
    ),
    pytest.param(
        with_host(firing(), cpu_busy_cores=None),
        "CPU time of the other processes",
        id="no load of the machine",
    ),
    pytest.param(with_phases(firing(), decode_s=None), "decode time", id="no decode time"),
]


@pytest.mark.parametrize("case", QUIET)
def test_quiet(case: Case) -> None:
    assert host_contention.detect(case) is None


@pytest.mark.parametrize(("case", "lost_s", "said"), FIRING)
def test_fires(case: Case, lost_s: float, said: str) -> None:
    finding = host_contention.detect(case)

    assert finding is not None
    assert finding.phase == "decode"
    assert finding.lost_s == pytest.approx(lost_s, rel=0.02)
    assert said in f"{finding.summary} {finding.remedy}"


@pytest.mark.parametrize(("case", "fact"), MISSING)
def test_names_the_missing_fact(case: Case, fact: str) -> None:
    with pytest.raises(Missing) as missing:
        host_contention.detect(case)

    assert missing.value.fact == fact


def detected(case: Case) -> Finding:
    finding = host_contention.detect(case)
    assert finding is not None
    return finding


def test_names_prefill_where_that_lost_most() -> None:
    slow = with_host(
        case(prefill_s=30.0), server_cpu_cores=1.0, server_run_delay_cores=1.0, cpu_busy_cores=2.0
    )
    finding = detected(slow)

    assert finding.phase == "prefill"
    assert finding.lost_s == pytest.approx(15.0, rel=0.02)


def test_a_core_that_the_samples_do_not_count_is_not_made_up() -> None:
    finding = detected(with_device(with_host(firing(), cpu_cores=None), cpu_logical_cores=None))

    assert "used 1.0 cores" in finding.summary
    assert "--threads" not in finding.remedy


def test_contention_beside_a_gpu_is_less_certain() -> None:
    on_cpu, beside_gpu = firing(), with_gpu(firing())

    assert detected(beside_gpu).confidence < detected(on_cpu).confidence


def test_others_that_came_for_half_of_the_time_cost_half() -> None:
    """The loss grows faster than the share: taken from the mean, this would come out too small."""
    busy, quiet = firing(), with_host(firing(), server_run_delay_cores=0.0, cpu_busy_cores=2.0)
    half = len(busy.host) // 2
    mixed = replace(busy, host=(*quiet.host[:half], *busy.host[half:]))

    ratios = [detected(c).lost_s for c in (busy, mixed)]

    samples = mixed.host_during("decode")
    contended = sum(bool(s.server_run_delay_cores) for s in samples) / len(samples)
    assert ratios[1] == pytest.approx(ratios[0] * contended, rel=0.05)


ONE = CpuUser(name="stress-ng", pid=4711, cpu_cores=0.9)
BUILD = CpuUser(name="cc1plus", pid=77, cpu_cores=0.8, processes=16)
NOISE = CpuUser(name="Xorg", pid=5, cpu_cores=0.06)


def looked(*looks: tuple[CpuUser, ...]) -> Case:
    """The case with looks at the others, in the midst of its decode."""
    before = firing()
    middle = len(before.host) // 2
    seen = [replace(s, others=o) for s, o in zip(before.host[middle:], looks, strict=False)]
    return replace(before, host=(*before.host[:middle], *seen, *before.host[middle + len(seen) :]))


def test_who_takes_the_cores_is_named_with_its_number_and_share() -> None:
    finding = detected(looked((ONE, NOISE)))

    assert finding.remedy.startswith(
        "Stop stress-ng (process 4711, 0.9 cores) or lower its priority (renice -n 19 -p 4711)"
    )
    [used] = [e for e in finding.evidence if e.name == "CPU used by stress-ng"]
    assert (used.value, used.unit) == (0.9, "cores")
    assert "Xorg" not in f"{finding}"


def test_several_programs_are_named_the_largest_first() -> None:
    finding = detected(looked((ONE, BUILD), (ONE,), (ONE, BUILD)))

    assert finding.remedy.startswith(
        "Stop stress-ng (process 4711, 0.9 cores), cc1plus (16 processes, the busiest 77, "
        "0.5 cores) or lower their priority (renice -n 19 -p PID)"
    )


@pytest.mark.parametrize("case", [firing(), looked(()), looked((NOISE,))])
def test_nobody_is_named_where_nobody_was_seen(case: Case) -> None:
    finding = detected(case)

    assert finding.remedy.startswith("Stop the other CPU-heavy processes or lower their priority")
    assert len(finding.evidence) == 3


def test_naming_them_changes_no_verdict() -> None:
    assert detected(looked((ONE,))).lost_s == detected(firing()).lost_s
    assert detected(looked((ONE,))).confidence == detected(firing()).confidence
