"""The supervisor over real processes: the sampling process itself, and ones that misbehave."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fakes.listening_process import Server
from slowtok.proxy.sampling.supervisor import SILENCE_S, Sampler

HOST_LINE = b'{"kind":"host","at_s":1.0,"span_s":0.2,"port":1,"cpu_cores":4}'

SAYS_ONE_LINE_THEN_HANGS = f"""
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print({HOST_LINE.decode()!r}, flush=True)
time.sleep(600)
"""
SAYS_GARBAGE_BETWEEN_LINES = f"""
import sys
for text in ("Segmentation fault", {HOST_LINE.decode()!r}, "x" * (3 << 20), {HOST_LINE.decode()!r}):
    print(text, flush=True)
sys.stdin.read()
"""
REPEATS_ITS_COMMANDS = """
import sys
for line in sys.stdin:
    print("got " + line, end="", flush=True)
"""
ANSWERS_LATER = f"""
import json, sys, time
print({HOST_LINE.decode()!r}, flush=True)
for line in sys.stdin:
    if "now" in line:
        now_s = time.monotonic()
        for kind in ({{"kind": "gpu", "index": 0}}, {{"kind": "edge"}}):
            print(json.dumps(kind | {{"at_s": now_s}}), flush=True)
"""

LONG_S = 30.0  # nothing takes nearly as long

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc here")


@asynccontextmanager
async def started(script: str | None = None, **settings: Any) -> AsyncIterator[Sampler]:
    if script is not None:
        settings["command"] = (sys.executable, "-c", script)
    sampler = Sampler(**{"pause_s": (0.02, 0.1), **settings})
    await sampler.start()
    try:
        yield sampler
    finally:
        await sampler.stop()


async def eventually(condition: Callable[[], object], within_s: float = 15.0) -> None:
    """Wait for real processes; a condition that never holds fails the test."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  it is other processes that are waited for
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pid_of(sampler: Sampler) -> int:
    pid = sampler.status()["pid"]
    assert isinstance(pid, int)
    return pid


async def test_before_the_start_everything_is_unknown_and_nothing_raises() -> None:
    sampler = Sampler()
    sampler.watch([8080])
    sampler.set_active(True)

    assert sampler.host_window(8080, 0, 1e9) == ()
    assert sampler.gpu_window(0, 1e9) == ()
    assert sampler.process(8080) is None
    assert not sampler.status()["alive"]
    assert not await sampler.wait_for_fresh_sample(timeout_s=0.01)
    await sampler.stop()


@needs_proc
async def test_a_busy_server_is_seen_as_it_is(busy_server: Server) -> None:
    async with started() as sampler:
        sampler.watch([busy_server.port])
        sampler.set_active(True)
        await eventually(lambda: sampler.process(busy_server.port))
        from_s = time.monotonic()
        await eventually(
            lambda: len(sampler.host_window(busy_server.port, from_s, from_s + 60)) >= 6
        )
        to_s = time.monotonic()
        assert await sampler.wait_for_fresh_sample(timeout_s=5.0)
        window = sampler.host_window(busy_server.port, from_s, to_s)
        facts = sampler.process(busy_server.port)
        status = sampler.status()

    assert facts is not None
    assert facts.pid == busy_server.pid
    # the machine may be shared: a thread that spins either runs or waits for a core
    whole = [s for s in window if s.server_cpu_cores is not None and s.span_s > 0.15]
    wanted = [(s.server_cpu_cores or 0) + (s.server_run_delay_cores or 0) for s in whole]
    assert sum(wanted) / len(wanted) == pytest.approx(1.0, abs=0.2)
    assert window[-1].server_threads == 2
    assert window[-1].at_s >= to_s - 0.05
    assert status["unreadable_lines"] == 0
    assert status["failed"] == {}
    assert (sampler.device().ram_bytes or 0) > 0


@needs_proc
async def test_killing_the_sampling_process_costs_only_samples(quiet_server: Server) -> None:
    port = quiet_server.port
    async with started() as sampler:
        sampler.watch([port])
        sampler.set_active(True)
        await eventually(lambda: sampler.host_window(port, 0, 1e9))
        before = sampler.host_window(port, 0, 1e9)
        killed = pid_of(sampler)
        os.kill(killed, signal.SIGKILL)
        died_s = time.monotonic()

        await eventually(lambda: sampler.host_window(port, died_s + 0.5, 1e9))

        assert sampler.host_window(port, 0, 1e9)[: len(before)] == before
        assert sampler.status()["restarts"] == 1
        assert sampler.status()["last_end"] == "ended with code -9"
        assert pid_of(sampler) != killed
        assert not is_running(killed)


@needs_proc
async def test_a_stopped_sampling_process_is_replaced() -> None:
    async with started(silence_s=1.0) as sampler:
        sampler.set_active(True)
        await eventually(lambda: sampler.host_window(None, 0, 1e9))
        stopped = pid_of(sampler)
        os.kill(stopped, signal.SIGSTOP)

        await eventually(lambda: not is_running(stopped))
        await eventually(lambda: sampler.status()["restarts"] >= 1)
        assert sampler.status()["last_end"] == "silent for 1 s"


async def test_a_beginning_among_many_asks_for_no_sample_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started(REPEATS_ITS_COMMANDS) as sampler:
        asked: list[dict[str, Any]] = []
        sampler.set_active(True)
        monkeypatch.setattr(sampler, "_send", asked.append)
        sampler.set_active(True, edge=False)
        assert asked == []

        sampler.set_active(True)
        assert asked == [{"now": True}]


async def test_machine_that_slept_has_not_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(ANSWERS_LATER) as sampler:
        await eventually(lambda: sampler.host_window(1, 0, 2))
        loop = asyncio.get_running_loop()
        awake_s = loop.time
        monkeypatch.setattr(loop, "time", lambda: awake_s() + SILENCE_S)  # all at once
        await asyncio.sleep(0.01)  # whatever that let expire is over now

        assert await sampler.wait_for_fresh_sample(LONG_S)
        assert sampler.status()["restarts"] == 0


async def test_one_that_hangs_is_replaced_again_and_again() -> None:
    async with started(SAYS_ONE_LINE_THEN_HANGS, silence_s=0.05) as sampler:
        await eventually(lambda: sampler.status()["restarts"] >= 2)

        assert sampler.status()["last_end"] == "silent for 0.05 s"
        assert sampler.host_window(1, 0, 2)


async def test_stop_leaves_no_process_behind_even_one_that_hangs() -> None:
    async with started(SAYS_ONE_LINE_THEN_HANGS) as sampler:
        await eventually(lambda: sampler.host_window(1, 0, 2))
        pid = pid_of(sampler)

    assert not is_running(pid)
    assert not sampler.status()["alive"]


async def test_garbage_and_endless_lines_are_counted_and_passed_over() -> None:
    async with started(SAYS_GARBAGE_BETWEEN_LINES) as sampler:
        await eventually(lambda: len(sampler.host_window(1, 0, 2)) == 2)

        assert sampler.status()["unreadable_lines"] >= 2
        assert sampler.status()["restarts"] == 0


async def test_a_process_that_dies_at_once_leaves_its_last_words() -> None:
    async with started("raise RuntimeError('no such luck')") as sampler:
        await eventually(lambda: sampler.status()["restarts"] >= 2)

        assert sampler.status()["last_end"] == "ended with code 1"
        assert sampler.status()["last_unreadable"] == "RuntimeError: no such luck"


async def test_one_that_dies_again_and_again_is_told_once_with_its_reason() -> None:
    told: list[str] = []
    async with started("raise RuntimeError('no such luck')", on_failure=told.append) as sampler:
        await eventually(lambda: sampler.status()["restarts"] >= 3)
        hidden = sampler.not_visible()

    why = "the sampling process does not run (ended with code 1: RuntimeError: no such luck)"
    assert told == [why]
    assert hidden == [{"fact": "this machine, its GPUs and the engines' processes", "why": why}]


async def test_one_that_runs_has_no_failure(quiet_server: Server) -> None:
    told: list[str] = []
    async with started(on_failure=told.append) as sampler:
        await eventually(lambda: sampler.host_window(None, 0, time.monotonic()))
        os.kill(pid_of(sampler), signal.SIGKILL)
        await eventually(lambda: sampler.status()["restarts"] >= 1)
        assert sampler.failure is None or "code -9" in sampler.failure
        await eventually(lambda: sampler.failure is None)

    assert told == []


async def test_a_command_that_is_not_there_is_reported() -> None:
    async with started(command=("/does/not/exist",)) as sampler:
        await eventually(lambda: sampler.status()["restarts"] >= 1)

        assert "FileNotFoundError" in sampler.status()["last_end"]


async def test_fresh_gives_up_in_time() -> None:
    async with started(SAYS_ONE_LINE_THEN_HANGS) as sampler:
        begun_s = time.monotonic()

        assert not await sampler.wait_for_fresh_sample(timeout_s=0.05)
        assert time.monotonic() - begun_s < 1.0


async def test_commands_are_sent_on_change_and_idleness_lingers() -> None:
    async with started(REPEATS_ITS_COMMANDS, linger_s=0.05) as sampler:

        def last() -> str:
            return str(sampler.status()["last_unreadable"])

        await eventually(lambda: last() == 'got {"ports":[],"active":false}')
        sampler.watch([8080])
        await eventually(lambda: last() == 'got {"ports":[8080],"active":false}')
        sampler.set_active(True)
        await eventually(lambda: last() == 'got {"ports":[8080],"active":true}')
        sent = sampler.status()["unreadable_lines"]
        sampler.set_active(False)
        sampler.set_active(True)  # the next request comes before the first has been forgotten
        sampler.set_active(True)  # and one more with it: one sample shows both beginnings
        await eventually(lambda: last() == 'got {"now":true}')
        sampler.watch([8080])
        sampler.set_active(False)
        await eventually(lambda: last() == 'got {"ports":[8080],"active":false}')

        assert sampler.status()["unreadable_lines"] == sent + 2


async def test_what_is_asked_for_has_come_when_fresh_returns() -> None:
    async with started(ANSWERS_LATER) as sampler:
        await eventually(lambda: sampler.host_window(1, 0, 2))
        sampler.set_active(True)

        assert await sampler.wait_for_fresh_sample(timeout_s=5.0)
        assert len(sampler.gpu_window(0, 1e9)) == 1
        assert await sampler.wait_for_fresh_sample(timeout_s=0.0)  # this new is new enough


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is meant")
def test_a_killed_proxy_takes_its_sampling_process_along() -> None:
    code = """
import asyncio
from slowtok.proxy.sampling.supervisor import Sampler
async def main():
    sampler = Sampler()
    await sampler.start()
    while not sampler.device().ram_bytes:
        await asyncio.sleep(0.01)
    print(sampler.status()["pid"], flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as proxy:
        assert proxy.stdout is not None
        pid = int(proxy.stdout.readline())
        assert is_running(pid)
        proxy.kill()

    deadline_s = time.monotonic() + 5.0
    while is_running(pid) and time.monotonic() < deadline_s:
        time.sleep(0.01)  # it ends by itself, in its own time
    assert not is_running(pid)
