"""Arithmetic and error policy against a small stand-in for `pynvml`.

No GPU and no NVML were there when these were written: they show what is made of answers and
errors, not that a driver gives them.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from slowtok.proxy.sampling import nvml, nvml_calls
from slowtok.proxy.sampling.nvml import Gpus
from slowtok.proxy.sampling.nvml_calls import Device, GpuLost, bandwidth_bytes_per_s, read_facts

NOT_SUPPORTED, NOT_FOUND, LIBRARY_NOT_FOUND, LOST, UNKNOWN = 3, 6, 12, 15, 999
MIB = 1 << 20


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class Nvml:
    """Answers by function name; an int in `failing` makes that function raise it."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 0x2000028  # noqa: N815

    def __init__(self, count: int = 1, **answers: Any) -> None:
        self.failing: dict[str, int] = {}
        self.called: list[str] = []
        self.answers: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlSystemGetDriverVersion": "580.95.05",
            "nvmlDeviceGetCount": count,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetName": "NVIDIA GeForce RTX 4090",
            "nvmlDeviceGetMemoryBusWidth": 384,
            "nvmlDeviceGetMaxClockInfo": 10501,
            "nvmlDeviceGetClockInfo": 10251,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=61),
            "nvmlDeviceGetFieldValues": [power(0, 310_500)],
            "nvmlDeviceGetPowerUsage": 300_000,
            "nvmlDeviceGetPerformanceState": 2,
            "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
            "nvmlDeviceGetTemperatureV": 64,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(free=1000 * MIB, total=24564 * MIB),
            "nvmlDeviceGetEnforcedPowerLimit": 450_000,
            "nvmlDeviceGetComputeRunningProcesses": [process(7, 100), process(8, None)],
            "nvmlDeviceGetGraphicsRunningProcesses": [process(7, 120), process(9, 5)],
            **answers,
        }

    def __getattr__(self, name: str) -> Any:
        if name not in self.answers:
            raise AttributeError(name)

        def call(*_: Any) -> Any:
            self.called.append(name)
            if name in self.failing:
                raise NVMLError(self.failing[name])
            return self.answers[name]

        return call


def power(error: int, milliwatts: int) -> SimpleNamespace:
    return SimpleNamespace(nvmlReturn=error, value=SimpleNamespace(uiVal=milliwatts))


def process(pid: int, memory: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=memory)


def gpus_of(library: Nvml) -> Gpus:
    return Gpus(library, process_name={7: "llama-server", 8: "Xorg"}.get)


def sample(gpus: Gpus, *, dear: bool = False) -> dict[str, Any]:
    (line,) = gpus.sample(dear=dear, servers={7})
    return line


class Clock:
    """Stands for the module `time` in the code under test."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(nvml, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("clock_mhz", "bits", "published_gb_s"),
    [
        (10501, 384, 1008),
        (9751, 384, 936),
        (14001, 512, 1792),
        (1215, 3072, 933),
        (2619, 5120, 3352),
    ],
    ids=["4090 GDDR6X", "3090 GDDR6X", "5090 GDDR7", "A30 HBM2", "H100 HBM3"],
)
def test_bandwidth_is_the_published_one(clock_mhz: int, bits: int, published_gb_s: int) -> None:
    bandwidth = bandwidth_bytes_per_s(clock_mhz, bits)

    assert bandwidth == pytest.approx(published_gb_s * 1e9, rel=0.002)


@pytest.mark.parametrize(("clock_mhz", "bits"), [(None, 384), (10501, None), (0, 384), (10501, 0)])
def test_bandwidth_without_its_facts_is_unknown(clock_mhz: int | None, bits: int | None) -> None:
    assert bandwidth_bytes_per_s(clock_mhz, bits) is None


@pytest.mark.parametrize("total", [0, None], ids=["total of zero", "not supported"])
def test_unified_memory_has_neither_size_nor_bandwidth(total: int | None) -> None:
    library = Nvml(nvmlDeviceGetMemoryInfo=SimpleNamespace(free=0, total=total))
    if total is None:
        library.failing["nvmlDeviceGetMemoryInfo"] = NOT_SUPPORTED

    facts = read_facts(Device(library, 0), driver=None)

    assert facts["total_bytes"] is None
    assert facts["bandwidth_bytes_per_s"] is None


def test_units_of_a_sample() -> None:
    line = sample(gpus_of(Nvml()), dear=True)

    assert (line["busy_ratio"], line["memory_busy_ratio"]) == (0.97, 0.61)
    assert (line["power_w"], line["power_limit_w"]) == (310.5, 450.0)
    assert (line["pstate"], line["reasons"], line["temperature_c"]) == (2, 4, 64)
    assert (line["free_bytes"], line["total_bytes"]) == (1000 * MIB, 24564 * MIB)


def test_a_process_in_both_lists_counts_once() -> None:
    line = sample(gpus_of(Nvml()), dear=True)

    assert line["processes"] == [
        {"pid": 7, "memory_bytes": 120, "name": "llama-server", "is_server": True},
        {"pid": 8, "memory_bytes": None, "name": "Xorg", "is_server": False},
        {"pid": 9, "memory_bytes": 5, "name": None, "is_server": False},
    ]


def test_cheap_samples_look_at_no_processes_and_remember_the_limit() -> None:
    gpus = gpus_of(Nvml())
    sample(gpus, dear=True)
    line = sample(gpus)

    assert "processes" not in line
    assert line["power_limit_w"] == 450.0


def test_idle_looks_at_memory_and_processes_alone() -> None:
    library = Nvml()
    gpus = gpus_of(library)
    sample(gpus)
    library.called.clear()
    (line,) = gpus.sample_idle(servers=set())

    assert line["free_bytes"] == 1000 * MIB
    assert "nvmlDeviceGetUtilizationRates" not in library.called


def test_power_falls_back_to_the_plain_call() -> None:
    library = Nvml(nvmlDeviceGetFieldValues=[power(NOT_SUPPORTED, 0)])
    gpus = gpus_of(library)

    assert sample(gpus)["power_w"] == 300.0
    assert sample(gpus)["power_w"] == 300.0
    assert library.called.count("nvmlDeviceGetFieldValues") == 1


def test_unsupported_is_unknown_and_asked_only_once() -> None:
    library = Nvml()
    library.failing["nvmlDeviceGetUtilizationRates"] = NOT_SUPPORTED  # as in MIG mode
    gpus = gpus_of(library)

    assert "busy_ratio" not in sample(gpus)
    sample(gpus)
    assert library.called.count("nvmlDeviceGetUtilizationRates") == 1
    assert gpus.errors() == 0


def test_an_older_binding_lacks_a_function() -> None:
    library = Nvml(nvmlDeviceGetTemperature=55)
    del library.answers["nvmlDeviceGetTemperatureV"]

    assert sample(gpus_of(library))["temperature_c"] == 55


def test_nothing_new_is_no_error() -> None:
    library = Nvml()
    library.failing["nvmlDeviceGetPowerUsage"] = NOT_FOUND
    gpus = gpus_of(library)
    sample(gpus)

    assert gpus.errors() == 0


def test_an_unknown_error_is_counted_and_given_up_after_three() -> None:
    library = Nvml()
    gpus = gpus_of(library)
    sample(gpus)
    library.failing["nvmlDeviceGetClockInfo"] = UNKNOWN
    library.called.clear()
    lines = [sample(gpus) for _ in range(5)]

    assert all(line["sm_clock_mhz"] is None for line in lines)
    assert library.called.count("nvmlDeviceGetClockInfo") == 2 * 3  # SM and memory clock
    assert gpus.errors() == 2 * 3


def test_a_dear_reading_is_left_to_the_slow_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {nvml_calls.read_power: 0.002}
    monkeypatch.setattr(nvml, "cost_s", lambda read, _: costs.get(read, 1e-5))
    gpus = gpus_of(Nvml())

    assert "power_w" not in sample(gpus)
    assert sample(gpus, dear=True)["power_w"] == 310.5


def test_no_library_is_said_once_and_not_tried_again(clock: Clock) -> None:
    library = Nvml()
    library.failing["nvmlInit"] = LIBRARY_NOT_FOUND
    gpus = gpus_of(library)

    assert gpus.sample(dear=True, servers=set()) == []
    assert gpus.news() == {"kind": "gpus", "gpus": None, "reason": "NVML library not found"}
    assert gpus.news() is None
    clock.now_s += 1000
    gpus.sample(dear=True, servers=set())
    assert library.called.count("nvmlInit") == 1


def test_a_machine_without_gpus_has_none_which_is_known() -> None:
    gpus = gpus_of(Nvml(count=0))
    gpus.sample(dear=True, servers=set())

    assert gpus.news() == {"kind": "gpus", "gpus": [], "reason": None}


def test_a_lost_gpu_is_reported_and_tried_again_with_growing_pauses(clock: Clock) -> None:
    library = Nvml()
    gpus = gpus_of(library)
    sample(gpus)
    library.failing["nvmlDeviceGetUtilizationRates"] = LOST
    opened_after_s = []
    for _ in range(1000):
        before = library.called.count("nvmlInit")
        assert gpus.sample(dear=False, servers=set()) == []
        if library.called.count("nvmlInit") > before:
            opened_after_s.append(clock.now_s - 1000.0)
        clock.now_s += 1.0

    assert opened_after_s[:6] == [5.0, 15.0, 35.0, 75.0, 135.0, 195.0]
    assert "nvmlShutdown" in library.called
    news = gpus.news()
    assert news is not None
    assert news["reason"] == "GPU 0: GPU is lost"

    library.failing.clear()
    clock.now_s += 60.0
    assert sample(gpus)["busy_ratio"] == 0.97
    news = gpus.news()
    assert news is not None
    assert news["reason"] is None


def test_one_lost_gpu_does_not_hide_the_other() -> None:
    class SecondIsLost(Nvml):
        def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
            if index == 1:
                raise NVMLError(LOST)
            return "handle"

    gpus = gpus_of(SecondIsLost(count=2))

    assert sample(gpus)["index"] == 0
    assert len(gpus) == 1
    news = gpus.news()
    assert news is not None
    assert news["reason"] == "GPU 1: GPU is lost"


def test_a_lost_handle_raises_out_of_any_call() -> None:
    library = Nvml()
    device = Device(library, 0)
    library.failing["nvmlDeviceGetName"] = LOST

    with pytest.raises(GpuLost):
        device.ask("nvmlDeviceGetName")
