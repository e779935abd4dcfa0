"""GPUs in the record: the right ones, counters as differences, absent where not known."""

from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import healthy, with_server
from fakes.records import GIB, full_case, with_full_gpus
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.clocks_event import NAMES
from slowtok.detectors.case.machine import GpuProcess, GpuSample
from slowtok.proxy.outputs.gpus import MAX_OTHERS, gpu_entries


def entries(*samples: GpuSample, case: Case | None = None) -> list[dict[str, Any]]:
    """What a case with these samples shows; with `case`, what that one shows."""
    return gpu_entries(case if case is not None else replace(healthy(), gpu=samples))


def at(at_s: float, index: int = 0, **readings: Any) -> GpuSample:
    return GpuSample(at_s=1000.0 + at_s, index=index, **readings)


@pytest.mark.parametrize(
    ("mine", "shown"), [(None, [0, 1]), ((), [0, 1]), ((1,), [1]), ((0, 1), [0, 1])]
)
def test_gpus_of_the_server_alone_are_shown(mine: tuple[int, ...] | None, shown: list[int]) -> None:
    case = with_server(full_case(), gpu_indices=mine)

    assert [entry["index"] for entry in entries(case=case)] == shown


def test_gpu_that_told_nothing_has_its_number_alone() -> None:
    assert entries(at(0.0), at(0.1)) == [{"index": 0}]


def test_every_bit_of_the_mask_has_its_name() -> None:
    [entry] = entries(at(0.0, reasons=0x7FF))

    assert entry["reasons"] == dict.fromkeys(NAMES.values(), 1.0)
    assert len(NAMES) == 11


def test_counters_are_differences() -> None:
    first, last = at(0.0), at(3.0)
    [entry] = entries(
        replace(first, energy_j=900.0, throttled_power_ns=5_000_000_000, throttled_sw_thermal_ns=7),
        at(1.0),
        replace(last, energy_j=1350.5, throttled_power_ns=5_250_000_000, throttled_sw_thermal_ns=7),
    )

    assert entry["energy_j"] == 450.5
    assert entry["throttled_ms"] == {"sw-power-cap": 250.0, "sw-thermal": 0.0}


@pytest.mark.parametrize("values", [(9.0,), (9.0, None), (9.0, 4.0)])
def test_counter_read_once_or_going_back_tells_nothing(values: tuple[float | None, ...]) -> None:
    samples = [at(float(i), energy_j=value) for i, value in enumerate(values)]

    assert "energy_j" not in entries(*samples)[0]


def test_energy_of_a_token_is_the_power_of_the_decode() -> None:
    [first, _] = entries(case=with_full_gpus(healthy()))

    # 75 J each half second, at 149.25 tokens/s
    assert first["energy_j_per_token"] == pytest.approx(150 / 149.25, rel=0.001)


def test_energy_of_a_token_needs_readings_over_half_of_the_decode() -> None:
    early = [at(0.2, energy_j=10.0), at(1.0, energy_j=90.0)]

    assert "energy_j_per_token" not in entries(*early)[0]
    assert "energy_j_per_token" in entries(*early, at(2.0, energy_j=190.0))[0]


def test_link_is_the_best_that_was_seen() -> None:
    [entry] = entries(
        at(0.0, pcie_generation=1, pcie_width=16), at(1.0, pcie_generation=4, pcie_width=16)
    )

    assert (entry["pcie_generation"], entry["pcie_width"]) == (4, 16)


def test_old_critical_error_is_not_of_this_request() -> None:
    old = entries(at(0.0, xid=79, xids=1), at(1.0, xid=79, xids=1))
    new = entries(at(0.0, xid=79, xids=1), at(1.0, xid=31, xids=2))

    assert (old[0].get("xid"), old[0]["xids"]) == (None, 0)
    assert (new[0]["xid"], new[0]["xids"]) == (31, 1)


def test_memory_is_split() -> None:
    [first, second] = entries(case=full_case())

    assert first["vram"] == {
        "server_bytes": 18 * GIB,
        "server_host_bytes": GIB,
        "server_evicted_bytes": 0,
        "others_bytes": 3 * GIB,
        "others": [{"name": "game", "pid": 99, "bytes": 3 * GIB}],
        "hidden_bytes": GIB // 2,
        "free_bytes": 2 * GIB,
        "total_bytes": 24 * GIB,
    }
    assert "server_bytes" not in second["vram"]
    assert second["vram"]["unassigned_bytes"] == GIB


def test_many_others_are_bounded_and_all_counted() -> None:
    processes = tuple(GpuProcess(pid=i, name="n" * 200, memory_bytes=GIB) for i in range(9))
    held = at(0.0, total_bytes=24 * GIB, free_bytes=15 * GIB, reserved_bytes=0, processes=processes)
    vram = entries(held)[0]["vram"]

    assert len(vram["others"]) == MAX_OTHERS
    assert len(vram["others"][0]["name"]) == 64
    assert vram["others_bytes"] == 9 * GIB
    assert vram["server_bytes"] == 0


def test_memory_without_processes_is_on_nobodys_name() -> None:
    [entry] = entries(at(0.0, total_bytes=24 * GIB, free_bytes=15 * GIB))

    assert entry["vram"] == {"free_bytes": 15 * GIB, "total_bytes": 24 * GIB}
