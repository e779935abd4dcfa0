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
from fakes.cause_tests import fires, found, lacks, missing_fact, quiet
from fakes.gpu_cases import HEALTHY_MS, gpu_case, with_readings
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.machine import CpuUser
from slowtok.detectors.causes.host import host_contention

QUIET = [
    pytest.param(
        with_host(
            healthy(), server_cpu_cores=0.002, server_run_delay_cores=0.0004, cpu_busy_cores=0.65
        ),
        id="a server that hardly uses the CPU",
    ),
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
    pytest.param(
        with_host(healthy(), cpu_steal_cores=0.08, cpu_busy_cores=2.06),
        id="a little steal of one core",
    ),
    pytest.param(
        with_gpu(with_host(healthy(), cpu_steal_cores=0.5, server_cpu_cores=1.0), busy_ratio=0.93),
        id="steal on a machine whose GPU decodes all the while",
    ),
    pytest.param(
        with_host(
            healthy(),
            cpu_cores=16,
            cpu_busy_cores=15.8,
            server_run_delay_cores=0.02,
            server_worst_delay_ratio=0.01,
            psi_cpu_some_ratio=0.6,
        ),
        id="a compile job on idle cores, where its own processes wait",
    ),
    pytest.param(
        with_host(healthy(), server_run_delay_cores=0.6, server_worst_delay_ratio=0.0),
        id="helper threads that hardly run wait, nobody took a core",
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


test_quiet = quiet(host_contention, QUIET)
test_fires = fires(host_contention, "lost_s said", FIRING, phase="decode")
test_names_the_missing_fact = lacks(host_contention, MISSING)


def test_names_prefill_where_that_lost_most() -> None:
    slow = with_host(
        case(prefill_s=30.0), server_cpu_cores=1.0, server_run_delay_cores=1.0, cpu_busy_cores=2.0
    )
    finding = found(host_contention, slow)

    assert finding.phase == "prefill"
    assert finding.lost_s == pytest.approx(15.0, rel=0.02)


def test_a_core_that_the_samples_do_not_count_is_not_made_up() -> None:
    finding = found(
        host_contention, with_device(with_host(firing(), cpu_cores=None), cpu_logical_cores=None)
    )

    assert "used 1.0 cores" in finding.summary
    assert "--threads" not in finding.remedy


def test_contention_beside_a_gpu_is_less_certain() -> None:
    on_cpu, beside_gpu = firing(), with_gpu(firing())

    assert found(host_contention, beside_gpu).confidence < found(host_contention, on_cpu).confidence


def test_others_that_came_for_half_of_the_time_cost_half() -> None:
    """The loss grows faster than the share: taken from the mean, this would come out too small."""
    busy, quiet = firing(), with_host(firing(), server_run_delay_cores=0.0, cpu_busy_cores=2.0)
    half = len(busy.host) // 2
    mixed = replace(busy, host=(*quiet.host[:half], *busy.host[half:]))

    ratios = [found(host_contention, c).lost_s for c in (busy, mixed)]

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
    finding = found(host_contention, looked((ONE, NOISE)))

    assert finding.remedy.startswith(
        "Stop stress-ng (process 4711, 0.9 cores) or lower its priority (renice -n 19 -p 4711)"
    )
    [used] = [e for e in finding.evidence if e.name == "CPU used by stress-ng"]
    assert (used.value, used.unit) == (0.9, "cores")
    assert "Xorg" not in f"{finding}"


def test_nobody_used_more_in_the_phase_than_all_did_together() -> None:
    before = replace(ONE, cpu_cores=2.9)  # in the second before, which the look tells of, too
    evidence = {e.name: e.value for e in found(host_contention, looked((before,))).evidence}

    assert evidence["CPU used by stress-ng"] == evidence["CPU used by others"] < 2.9


def test_several_programs_are_named_the_largest_first() -> None:
    finding = found(host_contention, looked((ONE, BUILD), (ONE,), (ONE, BUILD)))

    assert finding.remedy.startswith(
        "Stop stress-ng (process 4711, 0.9 cores), cc1plus (0.5 cores in 16 processes, "
        "the busiest is 77) or lower their priority (renice -n 19 -p PID)"
    )


@pytest.mark.parametrize("case", [firing(), looked(()), looked((NOISE,))])
def test_nobody_is_named_where_nobody_was_seen(case: Case) -> None:
    finding = found(host_contention, case)

    assert finding.remedy.startswith("Stop the other CPU-heavy processes or lower their priority")
    assert len(finding.evidence) == 3


def test_naming_them_changes_no_verdict() -> None:
    assert found(host_contention, looked((ONE,))).lost_s == found(host_contention, firing()).lost_s
    assert (
        found(host_contention, looked((ONE,))).confidence
        == found(host_contention, firing()).confidence
    )


def stolen(**host: float) -> Case:
    """Two threads on two cores of a virtual machine, whose hypervisor keeps 36 % to itself."""
    fields = {"cpu_steal_cores": 0.72, "server_cpu_cores": 1.26, "server_run_delay_cores": 0.02}
    return with_host(case(ms_per_token=20.0), **(fields | host))


def test_what_the_hypervisor_takes_is_proof_and_nobody_is_told_to_stop_anything() -> None:
    finding = found(host_contention, stolen())

    assert finding.phase == "decode"
    assert finding.proof_s == pytest.approx(0.36 * 8.98, rel=0.03)
    assert finding.lost_s >= finding.proof_s
    assert "36 % of the time that its cores wanted to run" in finding.summary
    assert finding.evidence[0].name == "taken by the hypervisor (steal)"
    assert "dedicated cores" in finding.remedy
    assert "Stop" not in finding.remedy
    assert "--threads" not in finding.remedy


def stolen_beside_a_gpu() -> Case:
    return with_host(
        gpu_case(ms_per_token=2 * HEALTHY_MS),
        cpu_steal_cores=0.5,
        cpu_busy_cores=1.1,
        server_cpu_cores=0.6,
    )


def test_steal_counts_where_the_gpu_stood_idle_for_as_long() -> None:
    slow = stolen_beside_a_gpu()
    finding = found(host_contention, with_readings(slow, busy_ratio=0.48))

    assert "The hypervisor withheld the CPU" in finding.summary
    assert 0.3 < finding.lost_s / (slow.phases.decode_s or 0.0) < 0.6
    assert (finding.confidence, finding.proof_s) == (0.6, 0.0)
    assert host_contention.detect(with_readings(slow, busy_ratio=0.7)) is None


def test_steal_does_not_count_where_two_gpus_took_turns() -> None:
    slow = stolen_beside_a_gpu()
    turns = with_server(with_readings(slow, busy_ratio=0.48), gpu_indices=(0, 1))
    turns = replace(turns, gpu=(*turns.gpu, *(replace(s, index=1) for s in turns.gpu)))

    assert host_contention.detect(turns) is None


def test_stolen_cores_are_not_used_by_others() -> None:
    finding = found(host_contention, stolen())

    assert not any(e.name == "CPU used by others" for e in finding.evidence)


def test_what_takes_more_comes_first_and_the_other_is_evidence() -> None:
    both = stolen(cpu_steal_cores=0.2, server_cpu_cores=0.9, server_run_delay_cores=0.9)
    finding = found(host_contention, both)

    assert "other processes used" in finding.summary
    assert finding.remedy.startswith("Stop")
    assert [e.name for e in finding.evidence][-2:] == [
        "taken by the hypervisor (steal)",
        "cores taken by the hypervisor",
    ]


def one_neighbour(**host: float) -> Case:
    """Eight threads on eight cores, one busy loop: seven of them wait for the one that waits."""
    fields = {
        "cpu_cores": 8,
        "cpu_busy_cores": 8.0,
        "server_cpu_cores": 7.5,
        "server_run_delay_cores": 0.5,
        "server_worst_delay_ratio": 0.45,
    }
    return with_host(with_server(case(ms_per_token=20.0), threads=8), **(fields | host))


def test_a_team_of_threads_loses_what_one_of_them_waited() -> None:
    finding = found(host_contention, one_neighbour())

    assert finding.proof_s == pytest.approx(0.45 * 8.98, rel=0.03)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            with_gpu(one_neighbour(server_cpu_cores=1.0, cpu_busy_cores=1.6)),
            id="a GPU decodes: one thread waits for it",
        ),
        pytest.param(
            one_neighbour(server_worst_delay_ratio=0.07), id="too little of the phase for a proof"
        ),
    ],
)
def test_what_need_not_hold_decode_up_proves_nothing(case: Case) -> None:
    assert found(host_contention, case).proof_s == 0.0


def test_threads_are_counted_as_every_remedy_counts_them() -> None:
    """One number in one record: not one for the neighbours and another for the cores."""
    crowded = with_device(
        with_server(
            one_neighbour(cpu_cores=16, cpu_busy_cores=8.6, server_allowed_cores=32), threads=16
        ),
        cpu_physical_cores=24,
        cpu_performance_cores=8,
        cpu_logical_cores=32,
    )

    assert "--threads 8" in found(host_contention, crowded).remedy
    assert "--threads 15" not in found(host_contention, crowded).remedy


def test_samples_of_a_small_part_of_decode_rule_nothing_out() -> None:
    seen = healthy()
    part = replace(seen, host=seen.host_during("decode")[:1])

    assert missing_fact(host_contention, part) == "host samples during decode"
