"""The real proxy in a thread, for tests that drive a browser; its engine does as it is told."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fakes.paced_engine import DONE, token
from fakes.proxy import NoSamples, Served, serving
from fakes.run_records import run_record
from fakes.upstream import Arrival, Upstream, listening
from fakes.wire import LAST_CHUNK, SSE, chunk, chunked_head, reply
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.machine import DeviceFacts, GpuSample
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.app import Proxy
from slowtok.proxy.outputs.record import make_record
from slowtok.proxy.sampling.protocol import ProcessFacts

CALL_S = 20.0
T = TypeVar("T")
MODEL = "small"


class MachineOf(NoSamples):
    """Shows the machine of a case as it was at its end."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self._case = case

    def device(self) -> DeviceFacts:
        return self._case.device

    def process(self, port: int) -> ProcessFacts:
        """Let the engine be the server in the case."""
        held = [process for sample in self._case.gpu for process in sample.processes or ()]
        return ProcessFacts(port=port, pid=next((p.pid for p in held if p.is_server), None))

    def gpu_window(self, begin_s: float, end_s: float) -> tuple[GpuSample, ...]:
        return tuple(replace(sample, at_s=end_s) for sample in self._case.gpu[-40:])


class Stage:
    """The proxy at `url`, and what a test has it do."""

    def __init__(self, loop: asyncio.AbstractEventLoop, served: Served, engine: Upstream) -> None:
        self._loop = loop
        self.served = served
        self.engine = engine
        self.url = f"http://127.0.0.1:{served.port}"
        self.page = f"{self.url}/slowtok/"

    @property
    def engine_name(self) -> str:
        """What the proxy calls the engine."""
        return self.served.proxy.engines.all[0].name

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the proxy's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)

    def put(self, *cases: Case) -> list[dict[str, Any]]:
        """Let requests have ended as these cases; returns their records, in the same order."""

        async def conclude() -> list[dict[str, Any]]:
            return [_conclude(self.served.proxy, case) for case in cases]

        return self.call(conclude())

    def stream(self, **asked: Any) -> Arrival:
        """Begin a stream; returns it where it waits at the engine."""

        async def begin() -> Arrival:
            client = await self.served.connect()
            await client.chat(**{"model": MODEL, **asked})
            arrival = await self.engine.next()
            await arrival.body()
            return arrival

        return self.call(begin())

    def send_head(self, arrival: Arrival) -> None:
        self.call(arrival.send(chunked_head(SSE)))

    def send_tokens(self, arrival: Arrival, count: int, *, gap_s: float = 0.0) -> None:
        async def send() -> None:
            for number in range(count):
                await arrival.send(chunk(token(number)))
                await asyncio.sleep(gap_s)

        self.call(send())

    def end(self, arrival: Arrival) -> None:
        async def last() -> None:
            await arrival.send(chunk(DONE) + LAST_CHUNK)
            arrival.over.set()

        self.call(last())

    def pass_through(self, path: str) -> None:
        """Have a request that is no generation."""

        async def ask() -> None:
            self.engine.reply = reply(b"ok")
            client = await self.served.connect()
            await client.ask("GET", path)
            await client.reply()
            self.engine.reply = None

        self.call(ask())


def _conclude(proxy: Proxy, case: Case) -> dict[str, Any]:
    diagnosis = diagnose(case)
    record = make_record(case, diagnosis)
    proxy.records.add(record)
    proxy.baselines.learn(case, diagnosis)
    for sink in proxy.sinks.values():
        sink(case, diagnosis, record)
    return record


def put_run(stage: Stage, run_id: str, *names: str) -> None:
    """Let requests of one run have ended, all but the first with a prompt that was read again."""

    async def add() -> None:
        for turn, name in enumerate(names, 1):
            lost_s = {"prompt-cache-miss": 4.0} if turn > 1 else {}
            run = {"id": run_id, "by": "header", "name": name}
            took_s = 5.0 if lost_s else 1.0
            record = run_record(turn, 10.0 * turn, prefill_s=took_s, run=run, lost_s=lost_s)
            stage.served.proxy.runs.ledger.add(record)

    stage.call(add())


@contextlib.contextmanager
def page_stage(
    state_dir: Path, *, change: Callable[[Proxy], None] | None = None, **settings: Any
) -> Iterator[Stage]:
    """Serve until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    over = asyncio.Event()

    async def live(found: list[Stage], is_there: threading.Event) -> None:
        async with (
            listening("llama-server", model=MODEL) as engine,
            serving(state_dir, engine.url, change=change, **settings) as served,
        ):
            found.append(Stage(loop, served, engine))
            is_there.set()
            await over.wait()

    found: list[Stage] = []
    is_there = threading.Event()
    living = asyncio.run_coroutine_threadsafe(live(found, is_there), loop)
    try:
        deadline_s = time.monotonic() + CALL_S
        while not is_there.wait(0.1):
            assert not living.done(), living.exception()
            assert time.monotonic() < deadline_s
        yield found[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        living.result(CALL_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
