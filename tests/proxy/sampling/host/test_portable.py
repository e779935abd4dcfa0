"""The psutil fallback, on whatever machine the tests run: psutil works on Linux as well."""

import os
import socket
import time
from typing import NamedTuple

import psutil
import pytest

from fakes.listening_process import Server
from slowtok.detectors.case.machine import DeviceFacts, HostSample
from slowtok.proxy.sampling.host.machine import Machine
from slowtok.proxy.sampling.host.portable import (
    PortableHostReader,
    PortablePort,
    process_name,
    read_conditions,
    read_host_facts,
)


def test_a_port_without_a_listener_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    reader = PortablePort(port)

    assert reader.read(slow_tier=True) == {}
    assert reader.changes() == {"kind": "process", "port": port, "unmapped": "no listener"}
    assert reader.changes() is None


def test_a_busy_server_is_followed_until_it_ends(busy_server: Server) -> None:
    machine = Machine(PortableHostReader(), PortablePort)
    machine.watch([busy_server.port])
    (process,) = machine.sample(slow_tier=True)
    time.sleep(0.5)  # rates are measured over real time
    (line,) = machine.sample(slow_tier=False)
    os.kill(busy_server.pid, 9)
    os.waitpid(busy_server.pid, 0)
    time.sleep(0.06)  # a shorter span gives no sample
    gone = machine.sample(slow_tier=True)

    assert process["pid"] == busy_server.pid
    assert line["server_cpu_cores"] > 0.05  # of a machine that others may use too
    assert line["server_threads"] == 2
    assert "server_cpu_cores" not in gone[-1]


def test_fields_are_those_of_the_contract() -> None:
    reader = PortableHostReader()
    first, second = reader.read(slow_tier=True), reader.read(slow_tier=True)

    HostSample(at_s=0.0, span_s=1.0, **(first | second))  # type: ignore[arg-type]
    assert DeviceFacts(**read_host_facts()).ram_bytes
    DeviceFacts(**read_conditions())  # type: ignore[arg-type]


class Battery(NamedTuple):
    power_plugged: bool | None


@pytest.mark.parametrize(
    ("battery", "on_battery"),
    [(None, None), (Battery(None), None), (Battery(True), False), (Battery(False), True)],
)
def test_battery(
    monkeypatch: pytest.MonkeyPatch, battery: Battery | None, on_battery: bool | None
) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)

    assert read_conditions() == {"on_battery": on_battery}


def test_process_names() -> None:
    assert process_name(os.getpid())
    assert process_name(2**31 - 1) is None
