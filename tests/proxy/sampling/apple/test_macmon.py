"""Apple's GPUs through a program on PATH: real processes that print what macmon does.

The older line was recorded with a macmon before 0.7 on a Mac with 16 GiB (tests of henrygd/beszel,
2026-02-17); the newer one has its numbers under the names of macmon 0.8.2's sources.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slowtok.detectors.case.machine import GpuFacts, GpuSample
from slowtok.proxy.sampling.apple import macmon
from slowtok.proxy.sampling.apple.macmon import (
    ABSENT,
    Macmon,
    open_macmon,
    parse_line,
    read_facts,
    read_sample,
)

OLD = {
    "all_power": 0.6468324661254883,
    "ane_power": 0.0,
    "cpu_power": 0.6359732151031494,
    "ecpu_usage": [2061, 0.1726151406764984],
    "gpu_power": 0.010859241709113121,
    "gpu_ram_power": 0.000965250947047025,
    "gpu_usage": [503, 0.013633215799927711],
    "memory": {
        "ram_total": 17179869184,
        "ram_usage": 12322914304,
        "swap_total": 0,
        "swap_usage": 0,
    },
    "pcpu_usage": [1248, 0.11792058497667313],
    "ram_power": 0.14885640144348145,
    "sys_power": 10.4955415725708,
    "temp": {"cpu_temp_avg": 23.041261672973633, "gpu_temp_avg": 29.44516944885254},
    "timestamp": "2026-02-17T19:34:27.942556+00:00",
}
NEW = OLD | {
    "fans": [],
    "gpu_freq_mhz": 503,
    "gpu_scaled_ratio": 0.013633215799927711,
    "gpu_active_ratio": 0.0428,
}
SOC = {
    "mac_model": "Mac15,8",
    "chip_name": "Apple M3 Max",
    "memory_gb": 64,
    "ecpu_cores": 4,
    "pcpu_cores": 12,
    "gpu_cores": 40,
    "gpu_freqs": [338, 618, 796, 924, 952, 1056, 1064, 1182, 1182, 1312, 1242, 1380],
}

PRINTS = """\
import json, sys, time
line = json.loads({line!r})
if "-s" in sys.argv:
    print(json.dumps(line | {{"soc": json.loads({soc!r})}}))
else:
    for _ in range(3):
        print(json.dumps(line), flush=True)
    {then}
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a script is no program there")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Macmon]]:
    """Put a program on PATH and open it."""
    opened: list[Macmon] = []

    def put(code: str) -> Macmon:
        program = tmp_path / "macmon"
        program.write_text(f"#!{sys.executable}\n{code}")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        reader = open_macmon()
        assert isinstance(reader, Macmon)
        opened.append(reader)
        return reader

    yield put
    for reader in opened:
        reader.close()


def good(line: dict[str, Any] = NEW, then: str = "time.sleep(600)") -> str:
    return PRINTS.format(line=json.dumps(line), soc=json.dumps(SOC), then=then)


def until(find: Callable[[], Any], within_s: float = 15.0) -> Any:
    """Call until something is found: real processes take their time."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        found = find()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError("it did not come")


def looked(gpus: Macmon) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        assert gpus.sample_idle(set()) == []
        return gpus.changes()

    changes = until(look)
    assert isinstance(changes, dict)
    return changes


@pytest.mark.parametrize(
    "text",
    ["", "Usage: macmon", "[1]", "{}", '{"temp": 3}', '{"temp": {}, "gpu_usage": ["a", 1]}'],
)
def test_what_macmon_does_not_print(text: str) -> None:
    assert parse_line(text) is None


def test_a_newer_line() -> None:
    line = parse_line(json.dumps(NEW))
    assert line is not None

    assert read_sample(line, 5.0, 1380) == {
        "kind": "gpu",
        "at_s": 5.0,
        "index": 0,
        "busy_ratio": 0.0428,
        "sm_clock_mhz": 503,
        "power_w": 0.010859241709113121,
        "temperature_c": 29,
    }


def test_an_older_line_knows_the_load_only_weighted_by_the_clock() -> None:
    line = parse_line(json.dumps(OLD))
    assert line is not None

    assert read_sample(line, 5.0, 1380)["busy_ratio"] == pytest.approx(
        0.01363 * 1380 / 503, rel=1e-3
    )
    assert read_sample(line, 5.0, None)["busy_ratio"] is None


def test_a_sensor_that_gives_nothing_is_unknown() -> None:
    assert read_sample(NEW | {"temp": {"gpu_temp_avg": 0.0}}, 5.0, None)["temperature_c"] is None


def test_facts() -> None:
    facts = read_facts(NEW | {"soc": SOC})

    assert GpuFacts(**facts).name == "Apple M3 Max (40-core)"
    assert facts["max_sm_clock_mhz"] == 1380
    assert facts["unified_memory"] is True
    assert read_facts({"soc": SOC | {"chip_name": "Apple M4 Pro"}})["name"] == "Apple M4 Pro"
    assert read_facts({})["name"] is None


def test_every_field_is_given_or_absent_with_a_reason() -> None:
    given = {name for name in read_sample(NEW, 5.0, 1380) if name != "kind"}

    assert given | set(ABSENT) == set(GpuSample.__dataclass_fields__)
    assert not given & set(ABSENT)


def test_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert open_macmon() == macmon.NOT_INSTALLED


@pytest.mark.parametrize(
    "code",
    [
        "print('Starting dashboard on port 8000')\nimport time\ntime.sleep(600)\n",
        "import sys\nsys.exit(2)\n",
        "print('{}')\n",
    ],
    ids=["another program of this name", "refuses", "another format"],
)
def test_another_program_is_told_and_ended(install: Callable[[str], Macmon], code: str) -> None:
    gpus = install(code)
    changes = looked(gpus)

    assert changes == {"kind": "gpus", "gpus": None, "reason": macmon.ANOTHER}
    assert len(gpus) == 0
    assert gpus.sample(slow_tier=True, servers=set()) == []
    assert gpus._run is None


def test_one_that_prints_nothing_is_given_up(
    install: Callable[[str], Macmon], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(macmon, "FIRST_LINE_S", 0.05)
    changes = looked(install("import time\ntime.sleep(600)\n"))

    assert changes["reason"] == macmon.ANOTHER


def test_it_runs_only_while_requests_do(install: Callable[[str], Macmon]) -> None:
    gpus = install(good())
    changes = looked(gpus)
    assert changes["reason"] is None
    assert [facts["name"] for facts in changes["gpus"]] == ["Apple M3 Max (40-core)"]
    assert gpus._run is None

    samples = until(lambda: gpus.sample(slow_tier=False, servers=set()))
    assert samples[0]["sm_clock_mhz"] == 503
    assert samples[0]["at_s"] <= time.monotonic()
    run = gpus._run
    assert run is not None
    pid = run._process.pid

    assert gpus.sample_idle(set()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_garbage_between_the_lines_is_counted(install: Callable[[str], Macmon]) -> None:
    gpus = install(good(then="print('warning: something', flush=True); time.sleep(600)"))
    looked(gpus)

    def errors() -> Any:
        gpus.sample(slow_tier=False, servers=set())
        return gpus.counts()["gpu_errors"]

    until(errors)

    assert gpus.counts() == {"gpu_errors": 1, "gpu_samples_stalled": 0, "gpu_hung": 0}


def test_one_that_ends_is_told_and_started_again_later(
    install: Callable[[str], Macmon], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = install(good(then="sys.exit(1)"))
    looked(gpus)

    def followed() -> Any:
        gpus.sample(slow_tier=False, servers=set())
        return gpus.changes()

    changes = until(followed)
    assert changes["reason"] == macmon.STOPPED
    assert changes["gpus"]
    assert gpus.sample(slow_tier=False, servers=set()) == []
    monkeypatch.setattr(gpus, "_start_at_s", 0.0)

    assert until(lambda: gpus.sample(slow_tier=False, servers=set()))


def test_one_that_goes_silent_is_ended(
    install: Callable[[str], Macmon], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = install(good())
    looked(gpus)
    until(lambda: gpus.sample(slow_tier=False, servers=set()))
    monkeypatch.setattr(macmon, "SILENCE_S", -1.0)
    gpus.sample(slow_tier=False, servers=set())

    assert gpus.counts()["gpu_hung"] == 1
    assert gpus._run is None
