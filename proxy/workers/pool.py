"""The pool of worker processes, as the observing process sees it.

Each worker has its own listening socket on the shared port (SO_REUSEPORT); the kernel spreads
connections over them. The sockets are opened here and handed over, so that none is lost when a
worker dies.
"""

import asyncio
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from slowtok.proxy.engines.registry import Engines
from slowtok.proxy.observe.observer import Observer
from slowtok.proxy.relay.settings import RelaySettings
from slowtok.proxy.server.connection_limit import raise_descriptor_limit
from slowtok.proxy.server.server import StopRequest
from slowtok.proxy.workers.priority import Launcher
from slowtok.proxy.workers.process import END_S, FirstWorker, WorkerProcess
from slowtok.proxy.workers.session import WorkerSession

START_S = 20.0  # until the greeting comes all the same; a machine that swaps takes long


class WorkerPool:
    """The `Server` that consists of several worker processes; `runner` serves the own pages.

    `first`, the process that the user started, relays at the first of the `listeners`. If it is
    lost, everything ends, as when `stop` is requested.
    """

    def __init__(
        self,
        settings: RelaySettings,
        observer: Observer,
        engines: Engines,
        runner: web.AppRunner,
        listeners: Sequence[socket.socket],
        first: FirstWorker,
        launcher: Launcher,
        stop: StopRequest,
        log_event: Callable[..., None],
    ) -> None:
        self._settings = settings
        self._observer, self._engines = observer, engines
        self._runner, self._log_event = runner, log_event
        self._folder = Path(tempfile.mkdtemp(prefix="slowtok-"))  # for this user alone
        self._workers = [
            WorkerProcess(
                listener=listener,
                settings=settings,
                pages_path=str(self._folder / "pages"),
                environment=first.environment,
                launcher=launcher,
                make_worker_session=self._make_session,
                log_event=log_event,
                failed=self._count_failure,
                first=first if listener is listeners[0] else None,
                gone=stop.asked.set,
            )
            for listener in listeners
        ]
        self._running: list[asyncio.Task[None]] = []

    @property
    def refused(self) -> int:
        """How many connections all workers refused because of the connection limit."""
        return sum(worker.refused for worker in self._workers)

    @property
    def loop_lag(self) -> Mapping[str, float | None]:
        """The largest event-loop lag of a worker; empty before the first report."""
        lags = [worker.loop_lag for worker in self._workers if worker.loop_lag]
        return max(lags, key=lambda lag: lag["max_ms"] or 0.0, default={})

    @property
    def held(self) -> Mapping[str, int]:
        """Bytes that the memory budgets of all workers count; `most_bytes` adds up their peaks."""
        held: Counter[str] = Counter(now_bytes=0, most_bytes=0)
        for worker in self._workers:
            held.update(worker.held)
        return dict(held)

    def workers(self) -> list[dict[str, Any]]:
        """Return the status of each worker."""
        return [worker.status() for worker in self._workers]

    async def open(self) -> None:
        """Start the workers, and wait until each accepts clients or has failed to."""
        raise_descriptor_limit(self._settings.max_connections)  # pages may need as many here
        await web.UnixSite(self._runner, str(self._folder / "pages")).start()
        for worker in self._workers:
            self._running.append(asyncio.create_task(worker.keep_running()))
        tried = [asyncio.create_task(worker.has_tried.wait()) for worker in self._workers]
        _, late = await asyncio.wait(tried, timeout=START_S)
        for waiting in late:
            waiting.cancel()

    async def close(self) -> int:
        """Stop accepting clients; return how many requests are in flight."""
        return sum(await asyncio.gather(*(worker.stop() for worker in self._workers)))

    async def drain(self, at_once: asyncio.Event) -> int:
        """Wait until all workers have ended; return how many requests were cut off."""
        again = asyncio.create_task(at_once.wait())
        running = asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.wait(
            (again, running),
            timeout=self._settings.grace_s + END_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        again.cancel()
        for worker in self._workers:
            worker.stop_at_once()
        await asyncio.wait((running,), timeout=END_S)
        for worker in self._workers:
            worker.kill()
        await running
        shutil.rmtree(self._folder, ignore_errors=True)
        return sum(worker.cut_off for worker in self._workers)

    def _make_session(self) -> WorkerSession:
        only = len(self._workers) == 1
        return WorkerSession(self._observer, self._engines, self._log_event, only=only)

    def _count_failure(self, name: str) -> None:
        self._observer.failures[name.replace("_", " ")] += 1
