from pathlib import Path

import pytest

from slowtok.detectors.case.machine import DeviceFacts
from slowtok.proxy.sampling.host.machine import Machine
from slowtok.proxy.sampling.host.power_state import (
    FIRST_PID_NAMESPACE,
    has_private_pids,
    is_on_battery,
    read_conditions,
)


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def supply(root: Path, name: str, **files: str) -> None:
    for file, text in files.items():
        write(root, f"sys/class/power_supply/{name}/{file}", text + "\n")


def test_a_machine_that_says_nothing_is_unknown(tmp_path: Path) -> None:
    assert set(read_conditions(str(tmp_path)).values()) == {None}


def test_fields_are_those_of_the_contract(tmp_path: Path) -> None:
    DeviceFacts(**read_conditions(str(tmp_path)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("supplies", "on_battery"),
    [
        ({"ADP1": {"type": "Mains", "online": "1"}}, None),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Charging"}}, False),
        ({"BAT0": {"type": "Battery", "status": "Full"}}, False),
        # a mouse runs on its own
        ({"hidpp_0": {"type": "Battery", "scope": "Device", "status": "Discharging"}}, None),
        # an adapter that gives too little is still an adapter
        (
            {
                "ADP1": {"type": "Mains", "online": "1"},
                "BAT0": {"type": "Battery", "status": "Discharging"},
            },
            False,
        ),
        (
            {
                "AC": {"type": "Mains", "online": "0"},
                "ucsi": {"type": "USB", "scope": "System", "online": "0"},
                "BAT0": {"type": "Battery", "status": "Discharging"},
            },
            True,
        ),
        (
            {
                "AC": {"type": "Mains", "online": "0"},
                "ucsi": {"type": "USB", "scope": "System", "online": "1"},
                "BAT0": {"type": "Battery", "status": "Not charging"},
            },
            False,
        ),
    ],
)
def test_battery(
    tmp_path: Path, supplies: dict[str, dict[str, str]], on_battery: bool | None
) -> None:
    for name, files in supplies.items():
        supply(tmp_path, name, **files)

    assert is_on_battery(str(tmp_path)) is on_battery


def test_profile_and_governor(tmp_path: Path) -> None:
    write(tmp_path, "sys/firmware/acpi/platform_profile", "low-power\n")
    write(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
    conditions = read_conditions(str(tmp_path))

    assert conditions["power_profile"] == "low-power"
    assert conditions["cpu_governor"] == "powersave"


@pytest.mark.parametrize(
    ("namespace", "private"), [(FIRST_PID_NAMESPACE, False), ("pid:[4026532281]", True)]
)
def test_pid_namespaces(tmp_path: Path, namespace: str, private: bool) -> None:
    assert has_private_pids(str(tmp_path)) is None
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to(namespace)

    assert has_private_pids(str(tmp_path)) is private


def test_facts_are_told_again_when_a_condition_changes() -> None:
    conditions: dict[str, bool | str | None] = {"on_battery": False}
    machine = Machine(
        NoHost(), NoHost, facts={"ram_bytes": 1024}, read_conditions=lambda: dict(conditions)
    )
    told = [machine.news(), machine.news()]
    conditions["on_battery"] = True

    assert told == [{"kind": "host_facts", "ram_bytes": 1024, "on_battery": False}, None]
    assert machine.news() == {"kind": "host_facts", "ram_bytes": 1024, "on_battery": True}


class NoHost:
    """Nothing is read of the host or of a port."""

    pids: list[int] = []  # noqa: RUF012
    is_known = True

    def __init__(self, port: int = 0) -> None:
        self.port = port

    def read(self, *, slow_tier: bool) -> dict[str, float | int | None]:
        return {"available_bytes": int(slow_tier)}

    def news(self) -> None:
        return None
