"""A worker that hangs is started again: the kernel would go on giving it clients."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from fakes.wire import until
from slowtok.config.settings import load
from slowtok.proxy.relay.settings import relay_settings
from slowtok.proxy.workers import process as module
from slowtok.proxy.workers.priority import Launcher
from slowtok.proxy.workers.process import WorkerProcess, environment

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is one process only")


class Listening:
    """Stands for a session: hears heartbeats and nothing else."""

    requests = in_flight = refused = heartbeats = 0
    loop_lag: ClassVar[dict[str, float]] = {}
    held: ClassVar[dict[str, int]] = {}

    def handlers(self) -> dict[str, Any]:
        return {"heartbeat": self._heartbeat}

    def changes(self) -> None:
        return None

    def changed_setups(self) -> dict[str, Any]:
        return {}

    def abandon(self) -> int:
        return 0

    def _heartbeat(self, _: object) -> None:
        self.heartbeats += 1


async def test_one_that_hangs_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_MISSED_HEARTBEATS", 8)
    monkeypatch.setattr(module, "END_S", 0.1)
    desks: list[Listening] = []
    told: list[str] = []

    def make_worker_session() -> Any:
        desks.append(Listening())
        return desks[-1]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        worker = WorkerProcess(
            listener=listener,
            settings=relay_settings(load({"workers": 2, "state_dir": str(tmp_path)}, {})),
            pages_path=str(tmp_path / "pages"),
            environment=environment(),
            launcher=Launcher(),
            make_worker_session=make_worker_session,
            log_event=lambda name, **_: told.append(name),
            failed=lambda _: None,
            gone=lambda: told.append("gone"),
        )
        running = asyncio.create_task(worker.keep_running())
        await until(lambda: desks and desks[0].heartbeats)
        hung = cast("int", worker.status()["pid"])
        os.kill(hung, signal.SIGSTOP)
        await until(lambda: len(desks) > 1 and desks[1].heartbeats)

        assert worker.status()["pid"] != hung
        assert (worker.restarts, told) == (1, ["worker-died"])
        await worker.stop()
        await running
