"""GPUs as the sampling loop sees them: a driver that hangs costs GPU samples and nothing else."""

import asyncio
import importlib.util
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes.nvml import stand_in
from fakes.nvml.cards import H100, MIB, RTX_4090
from fakes.nvml.stand_in import Script
from slowtok.detectors.case.machine import GpuSample
from slowtok.proxy.sampling import hang_guard
from slowtok.proxy.sampling.hang_guard import PatientGpus
from slowtok.proxy.sampling.nvidia import devices as nvml_devices
from slowtok.proxy.sampling.nvidia.devices import HUNG, NvidiaDevices
from slowtok.proxy.sampling.protocol import parse_line
from slowtok.proxy.sampling.supervisor import Sampler

COMMAND = (sys.executable, "-P", "-m", "slowtok.proxy.sampling")

LOOK = """
from pathlib import Path
from slowtok.proxy.sampling.nvidia import devices

devices.WSL_LIBRARY = Path({path!r})
gpus = devices.open_gpus(lambda _: None)
gpus._patience_s = 10.0
line, = gpus.sample(slow_tier=True, servers=set())
print(line["busy_ratio"], line["processes"], gpus.changes()["gpus"][0]["absent"]["processes"])
"""


@pytest.fixture
def script(script: Script, monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stand_in.library().parent))
    return script


@pytest.fixture(autouse=True)
def clock() -> None:
    """Let the clock run: what blocks, and for how long, is the subject here."""


def nobody(_: int) -> None:
    """No process has a name."""


def opened(patience_s: float = 10.0) -> PatientGpus:
    return PatientGpus(NvidiaDevices(stand_in.binding(), nobody), HUNG, patience_s=patience_s)


def sample(gpus: PatientGpus) -> list[dict[str, Any]]:
    return gpus.sample(slow_tier=False, servers=set())


def until(true: Callable[[], Any], timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_news_is_told_once(script: Script) -> None:
    gpus = opened()
    assert gpus.changes() is None  # nothing is known yet
    sample(gpus)

    changes = gpus.changes()
    assert changes is not None
    assert [facts["uuid"] for facts in changes["gpus"]] == [RTX_4090["UUID"]]
    assert gpus.changes() is None
    assert len(gpus) == 1


def test_a_lost_gpu_is_news(script: Script) -> None:
    gpus = opened()
    sample(gpus)
    gpus.changes()
    script.set(gpu0="!15")

    assert sample(gpus) == []
    changes = gpus.changes()
    assert changes is not None
    assert changes["reason"] == "GPU 0: GPU is lost"
    assert len(gpus) == 0


def test_a_call_that_blocks_is_not_waited_for(script: Script) -> None:
    gpus = opened(patience_s=0.05)
    answered(gpus)
    script.gpu(0, {"UtilizationRates": "~1000 97 61"})
    begun_s = time.monotonic()
    for _ in range(5):
        assert sample(gpus) == []
    assert time.monotonic() - begun_s < 1.0

    script.gpu(0, {"UtilizationRates": "97 61"})
    answered(gpus)


def answered(gpus: PatientGpus) -> list[dict[str, Any]]:
    """Return the first lines that come, whenever that is."""
    found: list[dict[str, Any]] = []

    def take() -> bool:
        found.extend(sample(gpus))
        return bool(found)

    until(take)
    return found


def test_what_took_too_long_is_of_no_one_moment_and_dropped(script: Script) -> None:
    gpus = opened(patience_s=0.05)
    answered(gpus)
    script.gpu(0, {"UtilizationRates": "~200 11 11"})
    assert sample(gpus) == []
    script.gpu(0, {"UtilizationRates": "97 61"})

    assert answered(gpus)[0]["busy_ratio"] == 0.97


def test_what_comes_a_little_late_is_passed_on(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_devices, "STALL_S", 10.0)
    gpus = opened(patience_s=0.05)
    answered(gpus)
    script.gpu(0, {"UtilizationRates": "~200 11 11"})
    assert sample(gpus) == []
    script.gpu(0, {"UtilizationRates": "97 61"})

    assert answered(gpus)[0]["busy_ratio"] == 0.11


def test_a_driver_that_is_always_a_little_slow_still_gives_samples(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_devices, "STALL_S", 10.0)
    gpus = opened(patience_s=0.01)
    answered(gpus)
    script.gpu(0, {"UtilizationRates": "~100 11 11"})  # not before: it would be demoted

    assert [answered(gpus)[0]["busy_ratio"] for _ in range(3)][-1] == 0.11


def test_a_call_that_does_not_return_is_news(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = opened(patience_s=0.05)
    answered(gpus)
    gpus.changes()
    script.gpu(0, {"UtilizationRates": "~400 97 61"})
    sample(gpus)
    assert gpus.changes() is None  # it may only be a little slow
    monkeypatch.setattr(hang_guard, "HUNG_S", 0.0)

    changes = gpus.changes()
    assert changes is not None
    assert changes["reason"] == "a call into the NVIDIA driver does not return"
    assert len(changes["gpus"]) == 1
    script.gpu(0, {"UtilizationRates": "97 61"})
    answered(gpus)
    changes = gpus.changes()
    assert changes is not None
    assert changes["reason"] is None


def test_a_fault_between_samples_reaches_the_loop_and_ends_nothing(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = NvidiaDevices(stand_in.binding(), nobody)
    gpus = PatientGpus(devices, HUNG, patience_s=10.0)
    faults = [ZeroDivisionError("ours")]
    looks: list[float | None] = [0.0]  # once at once, never again

    def look() -> None:
        raise faults.pop()

    monkeypatch.setattr(devices, "look_s", lambda: looks.pop() if looks else None)
    monkeypatch.setattr(devices, "look", look)
    sample(gpus)

    with pytest.raises(ZeroDivisionError):
        sample(gpus)
    script.gpu(0, {"UtilizationRates": "11 11"})
    assert sample(gpus)[0]["busy_ratio"] == 0.11  # its own answer, not the one before


def test_a_fault_of_ours_reaches_the_loop_and_ends_nothing(script: Script) -> None:
    faults = [ZeroDivisionError("ours")]

    def name_of(_: int) -> str | None:
        if faults:
            raise faults.pop()
        return None

    gpus = PatientGpus(NvidiaDevices(stand_in.binding(), name_of), HUNG, patience_s=10.0)
    with pytest.raises(ZeroDivisionError):
        gpus.sample(slow_tier=True, servers=set())
    assert len(gpus.sample(slow_tier=True, servers=set())) == 1


def test_what_went_wrong_is_counted(script: Script) -> None:
    gpus = opened()
    nothing = {"gpu_errors": 0, "gpu_samples_stalled": 0, "gpu_hung": 0}
    assert gpus.counts() == nothing
    sample(gpus)
    assert gpus.counts() == nothing
    script.gpu(0, {"ClockInfo.1": "!999", "UtilizationRates": "~150 97 61"})
    sample(gpus)
    assert gpus.counts() == {"gpu_errors": 1, "gpu_samples_stalled": 1, "gpu_hung": 0}
    script.set(gpu0="!15")
    sample(gpus)

    assert gpus.counts()["gpu_errors"] == 1  # those of a lost GPU count on


def test_calls_that_hang_are_counted_while_they_do_and_after(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_guard, "HUNG_S", 0.1)
    gpus = opened(patience_s=0.05)
    answered(gpus)
    script.gpu(0, {"UtilizationRates": "~400 97 61"})
    sample(gpus)
    assert gpus.counts()["gpu_hung"] == 0
    until(lambda: gpus.counts()["gpu_hung"] == 1)
    script.gpu(0, {"UtilizationRates": "97 61"})
    answered(gpus)

    assert gpus.counts()["gpu_hung"] == 1


@pytest.mark.parametrize(
    "call",
    ["TotalEnergyConsumption", "Field82", "GpmDramBusy", "TotalEccErrors.1.1", "PciInfo", "Xids"],
)
def test_whatever_call_blocks_nothing_is_delayed(script: Script, call: str) -> None:
    script.gpu(0, H100 | {call: f"~1000 {H100[call]}"})
    gpus = opened(patience_s=0.02)
    begun_s = time.monotonic()
    for _ in range(5):
        gpus.sample(slow_tier=True, servers=set())

    assert time.monotonic() - begun_s < 1.0


@contextmanager
def sampling() -> Iterator[Iterator[dict[str, Any]]]:
    """Yield the lines of an active sampling process, with the stand-in in place of NVML."""
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"ports":[],"active":true}\n')
        process.stdin.flush()
        try:
            yield map(json.loads, process.stdout)
        finally:
            process.kill()


def some(lines: Iterator[dict[str, Any]], kind: str, count: int) -> list[dict[str, Any]]:
    found = (line for line in lines if line["kind"] == kind)
    return [next(found) for _ in range(count)]


def test_the_process_says_what_the_driver_says(script: Script) -> None:
    with sampling() as lines:
        (gpus,) = some(lines, "gpus", 1)
        line = next(line for line in lines if line["kind"] == "gpu" and "energy_j" in line)

    assert gpus["gpus"][0]["name"] == "NVIDIA GeForce RTX 4090"
    parsed = parse_line(json.dumps(line).encode())
    assert isinstance(parsed, GpuSample)
    assert (parsed.busy_ratio, parsed.power_w, parsed.power_limit_w) == (0.97, 310.5, 400.0)
    assert (parsed.pcie_generation, parsed.pcie_width) == (4, 8)
    assert (parsed.energy_j, parsed.throttled_power_ns) == (5000.25, 7_000_000_000)
    assert parsed.processes is not None
    assert [process.memory_bytes for process in parsed.processes] == [120 * MIB, None, 5 * MIB]


def test_the_process_measures_pcie_traffic_through_every_wrap(script: Script) -> None:
    script.gpu(0, {"Field197": "4294000000 +1e9/s", "Field198": "0 +2e10/s"})
    with sampling() as lines:
        samples = some(lines, "gpu", 12)

    received = [line["pcie_rx_bytes_per_s"] for line in samples if "pcie_rx_bytes_per_s" in line]
    sent = [line["pcie_tx_bytes_per_s"] for line in samples if "pcie_tx_bytes_per_s" in line]
    assert len(received) >= 5
    assert statistics.median(received) == pytest.approx(20e9, rel=0.1)
    assert statistics.median(sent) == pytest.approx(1e9, rel=0.1)


def test_the_process_looks_in_between_at_a_link_that_wraps_within_a_sample(
    script: Script,
) -> None:
    script.gpu(0, {"MaxPcieLinkGeneration": 5, "Field198": "0 +5e10/s"})
    with sampling() as lines:
        samples = some(lines, "gpu", 15)

    received = [line["pcie_rx_bytes_per_s"] for line in samples if "pcie_rx_bytes_per_s" in line]
    assert len(received) >= 3
    assert statistics.median(received) == pytest.approx(50e9, rel=0.1)


def test_the_process_samples_the_host_while_the_driver_hangs(script: Script) -> None:
    with sampling() as lines:
        some(lines, "gpu", 2)
        script.gpu(0, {"PerformanceState": "~60000 2"})
        hosts = some(lines, "host", 8)

    gaps_s = [later["at_s"] - sooner["at_s"] for sooner, later in itertools.pairwise(hosts)]
    assert statistics.median(gaps_s) == pytest.approx(0.2, abs=0.1)


async def test_the_proxy_has_fresh_samples_while_the_driver_hangs(script: Script) -> None:
    script.gpu(0, {"UUID": "~60000 GPU-1"})  # it hangs before a GPU is even open
    sampler = Sampler()
    await sampler.start()
    sampler.set_active(True)
    try:
        async with asyncio.timeout(20.0):
            while not await sampler.wait_for_fresh_sample(
                timeout_s=0.5
            ):  # it may not have started yet
                pass
        assert await sampler.wait_for_fresh_sample(timeout_s=5.0)
        assert sampler.status()["restarts"] == 0
        assert sampler.device().gpus is None
    finally:
        await sampler.stop()


def test_wsl_is_told_by_the_library_that_windows_puts_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_devices, "WSL_LIBRARY", tmp_path / "libnvidia-ml.so.1")
    assert not nvml_devices.is_wsl()
    nvml_devices.load_wsl_library()  # what is not there is no error

    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"not a library")
    assert nvml_devices.is_wsl()
    nvml_devices.load_wsl_library()


def test_the_library_is_found_where_the_loader_does_not_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVML_STAND_IN", str(Script(tmp_path / "nvml.txt", RTX_4090).path))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    look = LOOK.format(path=str(stand_in.library()))
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.startswith("0.97 None not available under WSL2")


def test_without_a_compiler_of_the_system_the_package_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)

    assert stand_in.compiler() == (sys.executable, "-m", "ziglang", "cc")


def test_without_any_compiler_tests_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(pytest.skip.Exception):
        stand_in.compiler()
