"""The inference servers: which there are, what each one is, and which one a request goes to.

Each engine is looked at out of band, never on a request's way; what it said last stands until it
is asked again. Engines that were named are kept whether they answer or not; without any, the
usual ports of this machine are tried until something answers.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
from yarl import URL

from slowtok.detectors.engine import ModelFacts, ServerFacts
from slowtok.proxy.sampling.supervisor import Sampler
from slowtok.proxy.servers import llama_server, ollama, vllm
from slowtok.proxy.servers.facts import Identity, Probe
from slowtok.proxy.servers.identify import identify
from slowtok.proxy.servers.locality import is_local
from slowtok.proxy.servers.model_facts import read_model_facts
from slowtok.proxy.servers.server_facts import meant_by, model_path, server_facts
from slowtok.proxy.servers.slots import POLL_S, SlotLog, count_busy

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


@dataclass(slots=True, eq=False)
class Engine:
    """One inference server. `identity` is None until it answered, and while it does not."""

    name: str
    url: str
    given: bool
    identity: Identity | None = None
    probe: Probe = field(default_factory=Probe)
    local: bool | None = None
    models: dict[str, ModelFacts] = field(default_factory=dict)
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    slots: SlotLog = field(default_factory=SlotLog)
    found_at_s: float | None = None

    @property
    def kind(self) -> str:
        """Which engine it is, "unknown" until it said so."""
        return self.identity.kind if self.identity else "unknown"

    def lookup(self, model: str | None) -> ModelFacts | None:
        """Return the model that a request means."""
        found = (self.models.get(name) for name in meant_by(model or ""))
        return next((facts for facts in found if facts), None)

    @property
    def version(self) -> str | None:
        """The version that it told."""
        return self.probe.version or (self.identity.version if self.identity else None)

    @property
    def port(self) -> int:
        """The port of its URL."""
        return URL(self.url).port or 80


class Engines:
    """All engines; `choose` picks one for a request, `facts` says what is known of it."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        upstreams: list[tuple[str | None, str]],
        *,
        sampler: Sampler,
        cache_dir: Path,
        own_port: int,
        tell: Callable[..., None],
    ) -> None:
        self._session = session
        self._sampler = sampler
        self._cache_dir = cache_dir
        self._tell = tell
        self._own_port = own_port
        self._tasks: set[asyncio.Task[None]] = set()
        self._discovered = asyncio.Event()
        self.all = [
            Engine(name=name or URL(url).authority, url=url, given=True) for name, url in upstreams
        ]

    @property
    def looked_at(self) -> str:
        """Say where engines were looked for, for messages."""
        if self.all:
            return ", ".join(engine.url for engine in self.all)
        ports = (port for port in USUAL_PORTS if port != self._own_port)
        return "ports " + ", ".join(str(port) for port in ports)

    def start(self, is_asked: Callable[[str], bool]) -> None:
        """Begin to look at the engines. `is_asked` says whether requests are at one, by name."""
        self._keep(asyncio.create_task(self._watch_slots(is_asked)))
        if self.all:
            for engine in self.all:
                self._spawn(engine)
        else:
            self._keep(asyncio.create_task(self._discover()))

    async def stop(self) -> None:
        """Stop looking."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def first_look(self, timeout_s: float) -> None:
        """Wait until the first look is over, for the greeting."""
        looks = [asyncio.ensure_future(engine.looked.wait()) for engine in self.all]
        if not looks:
            looks = [asyncio.ensure_future(self._discovered.wait())]
        _, late = await asyncio.wait(looks, timeout=timeout_s)
        for look_task in late:
            look_task.cancel()

    async def choose(self, model: str | None) -> Engine | None:
        """Return the engine that lists `model`, the first one otherwise, None where there is none.

        An engine that was not seen yet, or not any more, is looked at first, so that it is not
        asked for what it does not need; that costs such a request at most `FIRST_LOOK_S`.
        """
        if not self.all:
            return None
        engine = next((e for e in self.all if e.lookup(model)), None) or self._first()
        if not engine.looked.is_set():
            try:
                await asyncio.wait_for(engine.looked.wait(), FIRST_LOOK_S)
            except TimeoutError:
                engine.looked.set()
        elif engine.identity is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._look(engine), FIRST_LOOK_S)
        return engine

    def lose(self, engine: Engine) -> None:
        """Take note that an engine refused a request: it is looked at before the next one."""
        if engine.identity is not None:
            engine.identity = None
            self._tell_of(engine, "engine-lost")

    def find(self, name: str | None) -> Engine | None:
        """Return the engine of that name."""
        return next((engine for engine in self.all if engine.name == name), None)

    def port_of(self, name: str | None) -> int | None:
        """Return the port of the engine of that name on this machine; None for one elsewhere."""
        engine = self.find(name)
        return None if engine is None or engine.local is False else engine.port

    def facts(self, name: str | None, model: str | None) -> tuple[ServerFacts, ModelFacts]:
        """Return what is known of an engine and of the model that it serves."""
        engine = self.find(name)
        if engine is None:
            return ServerFacts(), ModelFacts(name=model)
        server = server_facts(
            engine.identity or Identity(kind="unknown"),
            engine.probe,
            self._sampler.process(engine.port) if engine.local is not False else None,
            url=engine.url,
            name=engine.name,
            local=engine.local,
            model=model,
        )
        server = replace(server, uptime_s=_uptime_s(server.uptime_s, engine.found_at_s))
        only = next(iter(engine.models.values())) if len(engine.models) == 1 else None
        return server, engine.lookup(model) or only or ModelFacts(name=model)

    def _first(self) -> Engine:
        return next((e for e in self.all if e.identity is not None), self.all[0])

    def _spawn(self, engine: Engine) -> None:
        self._keep(asyncio.create_task(self._watch(engine)))
        self._sampler.watch([e.port for e in self.all])

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _discover(self) -> None:
        """Try the usual ports until engines answer; those that do are kept and watched."""
        while True:
            for port in USUAL_PORTS:
                url = f"http://127.0.0.1:{port}"
                if port == self._own_port or any(e.url == url for e in self.all):
                    continue
                identity = await identify(self._session, url)
                if identity is not None and identity.kind != "unknown":
                    engine = Engine(name=f"{identity.kind}:{port}", url=url, given=False)
                    self.all.append(engine)
                    self._spawn(engine)
                    await engine.looked.wait()
            self._discovered.set()
            await asyncio.sleep(RETRY_S if not self.all else REFRESH_S)

    async def _watch(self, engine: Engine) -> None:
        while True:
            await self._look(engine)
            loading = engine.kind == "llama-server" and not engine.models
            if engine.identity is None or loading:
                await asyncio.sleep(RETRY_S)
            elif self._may_sleep(engine):
                await self._watch_sleep(engine)
            else:
                await asyncio.sleep(REFRESH_S)

    def _may_sleep(self, engine: Engine) -> bool:
        """Say whether an engine was told to put its model away when idle, or was seen to."""
        if engine.kind != "llama-server":
            return False
        process = self._sampler.process(engine.port) if engine.local is not False else None
        asked = process and llama_server.parse_flags(process.cmdline, process.environment)
        return bool(engine.probe.sleeping or (asked and (asked.sleep_idle_s or 0) > 0))

    async def _watch_sleep(self, engine: Engine) -> None:
        """Ask only whether the model sleeps, until it is time for a whole look again."""
        for _ in range(int(REFRESH_S / SLEEP_POLL_S)):
            await asyncio.sleep(SLEEP_POLL_S)
            sleeping = await llama_server.is_sleeping(self._session, engine.url)
            if sleeping is None:  # it does not answer: a whole look will tell
                return
            engine.probe = replace(engine.probe, sleeping=sleeping)

    async def _watch_slots(self, is_asked: Callable[[str], bool]) -> None:
        """Count the slots at work while a request is at an engine, and never else."""
        while True:
            await asyncio.sleep(POLL_S)
            asked = [e for e in self.all if e.kind == "llama-server" and is_asked(e.name)]
            for engine in asked:
                busy = await count_busy(self._session, engine.url)
                if busy is not None:
                    engine.slots.note(time.monotonic(), busy)

    async def _look(self, engine: Engine) -> None:
        """Ask an engine what it is; a look that breaks leaves what was known."""
        before = engine.identity
        try:
            engine.local = await is_local(engine.url)
            engine.identity = await identify(self._session, engine.url)
            engine.probe = await _probe(self._session, engine)
            await self._read_models(engine)
        except Exception as error:  # noqa: BLE001 - looking must never end the watching
            self._tell("engine-look-failed", engine=engine.name, error=type(error).__name__)
        engine.looked.set()
        if before is None and engine.identity is not None:
            engine.found_at_s = time.monotonic()
        if (before is None) != (engine.identity is None):
            self._tell_of(engine, "engine-found" if engine.identity else "engine-lost")

    def _tell_of(self, engine: Engine, event: str) -> None:
        self._tell(
            event, engine=engine.name, url=engine.url, kind=engine.kind, version=engine.version
        )

    async def _read_models(self, engine: Engine) -> None:
        """Read the geometry of the models that the engine has, once for each file."""
        if engine.identity is None:
            return
        names = engine.probe.models
        for name in names:
            path = model_path(engine.identity, engine.probe, name if len(names) > 1 else None)
            known = engine.models.get(name)
            if known is None or (path is not None and known.path != path):
                engine.models[name] = await self._read_model(name, path, local=engine.local)
        for name in [name for name in engine.models if name not in names]:
            del engine.models[name]

    async def _read_model(self, name: str, path: str | None, *, local: bool | None) -> ModelFacts:
        if local and path:
            facts = await read_model_facts(Path(path), self._cache_dir)
            if facts is not None:
                return replace(facts, name=name, path=path)
        return ModelFacts(name=name)


async def _probe(session: aiohttp.ClientSession, engine: Engine) -> Probe:
    if engine.kind == "llama-server":
        return await llama_server.probe(session, engine.url)
    if engine.kind == "ollama":
        return await ollama.probe(session, engine.url)
    if engine.identity is not None:
        return await vllm.probe(session, engine.url)  # /v1/models, as all the others have it
    return engine.probe


def _uptime_s(told_s: float | None, found_at_s: float | None) -> float | None:
    """Return how long an engine has been there: at most since it was found, or found again."""
    if found_at_s is None:
        return told_s
    here_s = time.monotonic() - found_at_s
    return here_s if told_s is None else min(told_s, here_s)
