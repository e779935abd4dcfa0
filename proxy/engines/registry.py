"""The registry of engines: discovers and probes them, and chooses one for each request.

Engines are probed out of band, never on the path of a request; the last report counts until the
next probe. Configured engines are kept whether they answer or not; without any, the usual ports of
this machine are tried until an engine answers.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.proxy.engines import routing
from slowtok.proxy.engines.counters.scraper import GAUGED, SCRAPED_KINDS, Scraper
from slowtok.proxy.engines.counters.slots import POLL_S, SlotsLook, look_at_slots
from slowtok.proxy.engines.drivers import llama_server
from slowtok.proxy.engines.engine import Engine, facts_at, runs_of
from slowtok.proxy.engines.look import look
from slowtok.proxy.engines.model_lists import ModelLists
from slowtok.proxy.engines.probing.identify import identify
from slowtok.proxy.engines.probing.probe import slots_url
from slowtok.proxy.sampling.protocol import ProcessFacts
from slowtok.proxy.sampling.supervisor import Sampler

__all__ = ["Engine", "Engines"]

USUAL_PORTS = {
    8080: "llama-server",
    9931: "llama-server",
    11434: "ollama",
    8000: "vllm",
    1234: "lm-studio",
    30000: "sglang",
}
RETRY_S = 2.0  # while an engine does not answer
REFRESH_S = 30.0  # while it does
SLEEP_POLL_S = 1.0  # while it may put its model to sleep: /props answers without waking it
FIRST_LOOK_S = 0.5  # a first request waits at most this long for the engine to be known

ToldSlots = Callable[[str, str | None, SlotsLook], None]


class Engines:
    """All engines; `choose` picks one for a request, `facts` returns what is known about it."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        upstreams: list[tuple[str | None, str]],
        *,
        sampler: Sampler,
        cache_dir: Path,
        own_port: int,
        log_event: Callable[..., None],
    ) -> None:
        self._session = session
        self._sampler = sampler
        self._cache_dir = cache_dir
        self._log_event = log_event
        self._own_port = own_port
        self._lists = ModelLists(session)
        self._tasks: set[asyncio.Task[None]] = set()
        self._discovered = asyncio.Event()
        self._is_asked: Callable[[str], bool] = lambda _name: False
        self._told_slots: ToldSlots = lambda _name, _model, _look: None
        self.all = [
            Engine(name=name or URL(url).authority, url=url, given=True) for name, url in upstreams
        ]

    @property
    def present(self) -> list[Engine]:
        """The engines that requests may go to: configured ones, and discovered ones that answer."""
        return [e for e in self.all if e.given or e.identity is not None]

    @property
    def several(self) -> bool:
        """Whether there are several engines to choose from."""
        return len(self.all) > 1 and len(self.present) > 1

    @property
    def searched_at(self) -> str:
        """Return the addresses where engines were searched, for error messages."""
        if self.all:
            return ", ".join(engine.url for engine in self.all)
        ports = (port for port in USUAL_PORTS if port != self._own_port)
        return "ports " + ", ".join(str(port) for port in ports)

    def start(self, is_asked: Callable[[str], bool], told_slots: ToldSlots | None = None) -> None:
        """Start to probe the engines. `is_asked` says whether requests are at one, by name.

        `told_slots` is called with each look at an engine's slots, and the model if it has several.
        """
        self._is_asked = is_asked
        self._told_slots = told_slots or self._told_slots
        self._keep(asyncio.create_task(self._watch_asked()))
        if self.all:
            for engine in self.all:
                self._spawn(engine)
        else:
            self._keep(asyncio.create_task(self._discover()))

    async def stop(self) -> None:
        """Stop probing."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._lists.stop()
        await asyncio.gather(*(engine.scraper.stop() for engine in self.all if engine.scraper))

    async def first_look(self, timeout_s: float) -> None:
        """Wait until the first probe is over, for the greeting."""
        looks = [asyncio.ensure_future(engine.looked.wait()) for engine in self.all]
        if not looks:
            looks = [asyncio.ensure_future(self._discovered.wait())]
        _, late = await asyncio.wait(looks, timeout=timeout_s)
        for look_task in late:
            look_task.cancel()

    async def choose(
        self, model: str | None, path: str = "", keys: Mapping[str, str] | None = None
    ) -> Engine | None:
        """Return the engine for a request; None if there is none.

        Of the engines that know `path`, it is the one that lists `model`, else the first that
        answers. If several might have a model that none lists, their lists are refreshed, at most
        every `RETRY_S`; `keys` are the client's authentication fields, for engines that require
        them. An engine that was not found yet, or not any more, is probed first, so that it is sent
        only what it needs. Each probe delays such a request by at most `FIRST_LOOK_S`; an engine
        that took all of that is not waited for again until a probe out of band has found it.
        """
        if len(self.all) == 1:
            await self._await_first_look(self.all[0])
            return self.all[0]
        engines = routing.fitting(self.present or self.all, path)
        if not engines:
            return None
        engine = routing.pick(engines, model)
        if engine is None and model is not None and len(engines) > 1:
            await self._lists.look_for(
                engines, model, keys or {}, every_s=RETRY_S, wait_s=FIRST_LOOK_S
            )
            engine = routing.pick(engines, model)
        if engine is None:
            engine = await self._back_again(path, model) or routing.first(engines)
        await self._await_first_look(engine)
        return engine

    async def _back_again(self, path: str, model: str | None) -> Engine | None:
        """Return an engine that was lost and lists `model`, if it answers now."""
        engine = routing.pick(routing.fitting(self.all, path), model)
        if engine is None:
            return None
        await self._await_first_look(engine)
        return None if engine.identity is None else engine

    async def merged_list(
        self, method: str, path: str, keys: Mapping[str, str]
    ) -> dict[str, Any] | None:
        """Return the merged model list of several engines.

        None if the request is not for a model list, if one engine alone can answer, or if none
        does.
        """
        if method != "GET" or path not in routing.MODEL_LISTS or not self.several:
            return None
        engines = routing.fitting(self.present, path)
        if len(engines) < 2:
            return None
        return await self._lists.merged(engines, path, keys)

    async def _await_first_look(self, engine: Engine) -> None:
        if engine.looked.is_set() and (engine.identity is not None or engine.is_late):
            return
        try:
            async with asyncio.timeout(FIRST_LOOK_S):
                if not engine.looked.is_set():
                    await engine.looked.wait()
                elif engine.identity is None:
                    await self._look(engine)
        except TimeoutError:
            engine.is_late = True
        engine.looked.set()

    def lose(self, name: str) -> None:
        """Note that an engine refused a connection: it is probed before the next request."""
        lost = self.find(name)
        if lost is not None and lost.identity is not None:
            lost.identity = None
            self._note_lost(lost)

    def find(self, name: str | None) -> Engine | None:
        """Return the engine of that name."""
        for engine in self.all:
            if engine.name == name:
                return engine
        return None

    def facts(
        self, name: str | None, model: str | None, **seen: Any
    ) -> tuple[ServerFacts, ModelFacts]:
        """Return the facts about an engine and the model that it serves.

        `seen` are further fields of the former, as of the request.
        """
        engine = self.find(name)
        process = None if engine is None else self.process_of(engine, model)
        return facts_at(engine, process, model, seen)

    def note_sent(self, name: str | None, model: str | None = None) -> None:
        """Scrape an engine's counters, because a request for `model` is about to be sent."""
        engine = self.find(name)
        if engine is None:
            return
        engine.note_asked(model)
        if engine.kind in SCRAPED_KINDS and not engine.probe.sleeping:
            if engine.scraper is None:
                engine.scraper = Scraper(self._session, engine.url, engine.activity)
            engine.scraper.begin()

    def awaits_load(self, name: str | None, model: str | None) -> bool | None:
        """Return True if a request has to wait until its engine has loaded `model`."""
        engine = self.find(name)
        return None if engine is None else engine.awaits_load(model)

    def process_of(self, engine: Engine, model: str | None) -> ProcessFacts | None:
        """Return the process that runs `model`: one behind the engine's port, if visible."""
        if engine.local is False:
            return None
        behind = self._sampler.process(engine.port_of(model))
        is_seen = behind is not None and behind.pid is not None
        return behind if is_seen else self._process(engine)

    def note_arrived(
        self, name: str | None, load_s: float | None = None, fingerprint: str | None = None
    ) -> None:
        """Scrape an engine's counters, because the last byte of a reply has arrived.

        `load_s` is how long the engine reports to have loaded its model for the request.
        `fingerprint` is the system fingerprint in the reply: a new one means another build or
        configuration.
        """
        engine = self.find(name)
        if engine is None:
            return
        if engine.scraper is not None:
            engine.scraper.want()
        engine.note_runs(self._process(engine))
        engine.note_reply(load_s, fingerprint)

    async def wait_for_look(self, name: str | None, timeout_s: float) -> bool:
        """Wait until a wanted or running probe is over; False if that takes too long."""
        engine = self.find(name)
        return engine is None or await engine.wait_for_look(timeout_s)

    async def wait_for_scrapes(self, name: str | None, timeout_s: float) -> bool:
        """Wait until the scrapes begun so far are answered; False if that takes too long."""
        engine = self.find(name)
        if engine is None or engine.scraper is None:
            return True
        return await engine.scraper.wait_for_answers(timeout_s)

    def _process(self, engine: Engine) -> ProcessFacts | None:
        return self._sampler.process(engine.port) if engine.local is not False else None

    def _spawn(self, engine: Engine) -> None:
        self._keep(asyncio.create_task(self._watch(engine)))
        self._watch_ports()

    def _watch_ports(self) -> None:
        """Have the sampler watch the listeners of engines whose address may be this machine's."""
        self._sampler.watch([port for e in self.all if e.local is not False for port in e.ports])

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _discover(self) -> None:
        """Try the usual ports until engines answer; those are kept and watched."""
        while True:
            known = {engine.url for engine in self.all}
            ports = {p: f"http://127.0.0.1:{p}" for p in USUAL_PORTS if p != self._own_port}
            asked = {port: url for port, url in ports.items() if url not in known}
            looks = await asyncio.gather(*(identify(self._session, u) for u in asked.values()))
            new = []
            for (port, url), identity in zip(asked.items(), looks, strict=True):
                if identity is not None and identity.kind != "unknown":
                    new.append(Engine(name=f"{identity.kind}:{port}", url=url, given=False))
            self.all.extend(new)
            for engine in new:
                self._spawn(engine)
            await asyncio.gather(*(engine.looked.wait() for engine in new))
            self._discovered.set()
            await asyncio.sleep(RETRY_S if not self.all else REFRESH_S)

    async def _watch(self, engine: Engine) -> None:
        while True:
            await self._look(engine)
            # it loads its model, or has begun to answer and not yet told of those that it had
            is_early = not engine.models and (engine.kind == "llama-server" or engine.asked_model)
            if engine.identity is None or is_early:
                await self._rest(engine, RETRY_S)
            elif self._may_sleep(engine):
                await self._watch_sleep(engine)
            else:
                await self._rest(engine, REFRESH_S)

    async def _rest(self, engine: Engine, rest_s: float) -> bool:
        """Wait for the next probe; return True if somebody requested it before its time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(rest_s):  # wait_for may swallow the end (Python 3.11)
                await engine.wanted.wait()
        return engine.wanted.is_set()

    def _may_sleep(self, engine: Engine) -> bool:
        """Return True if an engine may unload its model when idle, or was seen to."""
        if engine.kind != "llama-server":
            return False
        process = self._process(engine)
        asked = process and llama_server.parse_flags(process.cmdline, process.environment)
        return bool(engine.probe.sleeping or (asked and (asked.sleep_idle_s or 0) > 0))

    async def _watch_sleep(self, engine: Engine) -> None:
        """Check only whether the model sleeps, until a complete probe is due."""
        for _ in range(int(REFRESH_S / SLEEP_POLL_S)):
            if await self._rest(engine, SLEEP_POLL_S):
                return
            sleeping = await llama_server.is_sleeping(self._session, engine.url)
            if sleeping is None:  # it does not answer: a whole look will tell
                return
            engine.probe = replace(engine.probe, sleeping=sleeping)

    async def _watch_asked(self) -> None:
        """Read slots and counters while a request is at an engine, and only then.

        What runs behind an engine's port is read without asking the engine, and compared all the
        time.
        """
        while True:
            await asyncio.sleep(POLL_S)
            for engine in self.all:
                engine.note_runs(self._process(engine))
            for engine in [e for e in self.all if self._is_asked(e.name)]:
                try:
                    await self._count(engine)
                except Exception as error:  # noqa: BLE001 - counting must never end the watching
                    self._log_failure(engine, error)

    async def _count(self, engine: Engine) -> None:
        if engine.scraper is not None and engine.kind in GAUGED:
            engine.scraper.poll()
        if engine.identity is None:
            return
        process, model = self._process(engine), engine.asked_model
        url = slots_url(engine.url, engine.identity, engine.probe, process, model)
        seen = None if url is None else await look_at_slots(self._session, url)
        if seen is not None:
            engine.slots.note(time.monotonic(), seen)
            several = engine.probe.loaded is not None  # then these are the slots of one of them
            self._told_slots(engine.name, model if several else None, seen)

    async def _look(self, engine: Engine) -> None:
        """Probe an engine; a probe that raises leaves what was known."""
        before, ran = engine.identity, engine.looked_at
        engine.wanted.clear()
        engine.is_looked_at = True
        engine.looked_at = runs_of(self._process(engine)) or ran
        try:
            await look(
                self._session,
                engine,
                self._process(engine),
                self._cache_dir,
                is_asked=lambda: self._is_asked(engine.name),
            )
        except Exception as error:  # noqa: BLE001 - looking must never end the watching
            self._log_failure(engine, error)
        finally:
            engine.note_look_over()
            self._watch_ports()
        engine.looked.set()
        engine.is_late = engine.is_late and engine.identity is None
        if engine.identity is not None and (before is None or engine.is_another(before, ran)):
            self._note_found(engine)
        elif before is not None and engine.identity is None:
            self._note_lost(engine)

    def _note_found(self, engine: Engine) -> None:
        engine.found_at_s, engine.lost_unix_s = time.monotonic(), None
        if engine.scraper is not None:
            engine.scraper.refused = False  # it may be another one, started otherwise
        self._log_engine(engine, "engine-found")
        if engine.identity is not None and engine.identity.relayed:
            self._log_event("engine-is-slowtok", engine=engine.name, url=engine.url)

    def _note_lost(self, engine: Engine) -> None:
        engine.lost_unix_s = time.time()
        self._log_engine(engine, "engine-lost")

    def _log_failure(self, engine: Engine, error: Exception) -> None:
        self._log_event("engine-look-failed", engine=engine.name, error=type(error).__name__)

    def _log_engine(self, engine: Engine, event: str) -> None:
        self._log_event(
            event, engine=engine.name, url=engine.url, kind=engine.last_kind, version=engine.version
        )
