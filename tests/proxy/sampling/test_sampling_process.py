"""The process itself, spoken to over its pipes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fakes.listening_process import Server, running

COMMAND = (sys.executable, "-P", "-m", "slowtok.proxy.sampling")
HEAVY = {"aiohttp", "asyncio", "numpy", "orjson", "psutil", "pydantic", "rich", "structlog"}
HEAVY |= {"subprocess", "typer"}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc here")

MAX_SAMPLES = 20


@contextmanager
def sampling() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def tell(process: subprocess.Popen[bytes], **command: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(command).encode() + b"\n")
    process.stdin.flush()


def lines(process: subprocess.Popen[bytes], *kinds: str) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for text in process.stdout:
        line = json.loads(text)
        if line["kind"] in kinds:
            yield line


def test_it_ends_when_stdin_closes() -> None:
    with sampling() as process:
        tell(process, ports=[], active=True)
        next(lines(process, "host"))
        assert process.stdin is not None
        process.stdin.close()

        assert process.wait(timeout=10) == 0


def test_it_ends_when_nobody_reads() -> None:
    with sampling() as process:
        tell(process, ports=[], active=True)
        assert process.stdout is not None
        process.stdout.close()

        assert process.wait(timeout=10) == 0


def test_ctrl_c_is_the_proxys_business() -> None:
    with sampling() as process:
        tell(process, ports=[], active=True)
        next(lines(process, "host"))
        process.send_signal(signal.SIGINT)

        assert next(lines(process, "host"))


def test_garbage_as_a_command_is_skipped() -> None:
    with sampling() as process:
        assert process.stdin is not None
        process.stdin.write(b"not json\n[1]\n")
        tell(process, ports=[], active=True)

        assert next(lines(process, "host"))["cpu_cores"] == os.cpu_count()


def test_while_active_samples_come_five_times_a_second() -> None:
    with sampling() as process:
        tell(process, ports=[], active=True)
        samples = lines(process, "host")
        times_s = [next(samples)["at_s"] for _ in range(6)]

    assert times_s[-1] - times_s[0] == pytest.approx(1.0, abs=0.1)


def test_a_port_without_a_listener_says_so_and_still_has_the_machine() -> None:
    with running("0") as server:
        port = server.port
    with sampling() as process:
        tell(process, ports=[port], active=True)
        both = lines(process, "process", "host")
        facts, sample = next(both), next(both)

    assert facts == {"kind": "process", "port": port, "unmapped": "no listener"}
    assert sample["port"] == port
    assert sample["cpu_cores"] == os.cpu_count()
    assert "server_cpu_cores" not in sample


def test_several_ports_have_a_sample_each(quiet_server: Server, busy_server: Server) -> None:
    ports = [quiet_server.port, busy_server.port]
    with sampling() as process:
        tell(process, ports=ports, active=True)
        samples = lines(process, "host")
        for _ in range(MAX_SAMPLES):  # on a busy machine the busy server may not get its turn
            by_port = {sample["port"]: sample for sample in (next(samples), next(samples))}
            if by_port[ports[1]]["server_cpu_cores"] > 0.05:
                break

    assert by_port[ports[0]]["at_s"] == by_port[ports[1]]["at_s"]
    assert by_port[ports[0]]["server_cpu_cores"] < 0.05
    assert by_port[ports[1]]["server_cpu_cores"] > 0.05


def test_children_and_the_end_of_a_server_are_news() -> None:
    with sampling() as process:
        with running("0", "parent", "--api-key", "hidden") as server:
            tell(process, ports=[server.port], active=True)
            facts = next(lines(process, "process"))
        gone = next(lines(process, "process"))

    assert facts["pid"] == server.pid
    assert facts["cmdline"][-3:] == ["parent", "--api-key", "***"]
    assert [child["cmdline"][-1] for child in facts["children"]] == ["--child"]
    assert gone["unmapped"] == "no listener"


def test_what_is_asked_for_is_answered() -> None:
    with sampling() as process:
        tell(process, ports=[], active=False)
        next(lines(process, "gpus"))
        asked_s = time.monotonic()
        tell(process, now=True)
        answer = next(lines(process, "edge"))

    assert asked_s <= answer["at_s"] < asked_s + 1.0


def test_host_facts_come_first() -> None:
    with sampling() as process:
        tell(process, ports=[], active=False)
        facts = next(lines(process, "host_facts", "gpus", "host"))

    assert facts["cpu_logical_cores"] == os.cpu_count()
    assert isinstance(facts["private_pids"], bool)


def test_it_tells_what_it_costs() -> None:
    with sampling() as process:
        tell(process, ports=[], active=True)
        overhead = next(lines(process, "overhead"))

    assert 0 < overhead["cpu_ratio"] < 0.5
    assert 0 < overhead["tick_p50_s"] <= overhead["tick_max_s"]
    assert overhead["gpu_errors"] == overhead["gpu_hung"] == overhead["gpu_samples_stalled"] == 0


def test_it_imports_little() -> None:
    code = "import sys, slowtok.proxy.sampling.__main__; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert HEAVY & set(done.stdout.split()) == set()


def test_what_ends_it_is_its_last_word() -> None:
    """The thread that reads stdin holds its lock: an orderly end would only say so."""
    broken = (
        "import slowtok.proxy.sampling.__main__ as sampling\n"
        "def run(*_): raise NameError('name ALL is not defined')\n"
        "sampling.run = run\n"
        "sampling.main()\n"
    )
    with subprocess.Popen(
        (sys.executable, "-P", "-c", broken),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read().splitlines()

        assert process.wait(timeout=10) == 1
    assert said[-1] == "NameError: name ALL is not defined"
