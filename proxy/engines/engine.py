"""One inference engine, as it was last probed."""

import asyncio
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from yarl import URL

from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.proxy.engines.counters.activity import ActivityLog
from slowtok.proxy.engines.counters.scraper import Scraper
from slowtok.proxy.engines.counters.slots import SlotLog
from slowtok.proxy.engines.drivers.openai_server import aliases_of
from slowtok.proxy.engines.models.loading import AS_IN_THE_FILES, Loading
from slowtok.proxy.engines.probing.facts import Identity, Kind, Probe
from slowtok.proxy.engines.probing.locality import is_here
from slowtok.proxy.engines.probing.server_facts import loaded_model, meant_by, server_facts
from slowtok.proxy.engines.routing import MODELS
from slowtok.proxy.sampling.protocol import ProcessFacts

MOST_USED = 64  # models whose order of use is remembered
RELOAD_S = 0.25
"""A load that an engine reports and that takes longer changes what it holds: Ollama reports tens of
milliseconds for a model that is there (ollama/ollama#12443). Heuristic: the figure."""

Runs = tuple[int, float | None, tuple[int, ...]]
"""What runs behind a port: pid and start of the process, and the pids below it."""

_Sources = tuple[Identity | None, Kind, Probe, ProcessFacts | None, bool | None, str | None]
"""What its facts are made of: who it is or was, what it tells, its process, the model asked for."""


def runs_of(process: ProcessFacts | None) -> Runs | None:
    """Return what runs behind a port; None if that is not known."""
    if process is None or process.pid is None:
        return None
    children = tuple(sorted(child.pid for child in process.children))
    return process.pid, process.created_unix_s, children


@lru_cache(maxsize=64)
def only_named(model: str | None) -> ModelFacts:
    """Return facts of a model of which only the name is known."""
    return ModelFacts(name=model)


@dataclass(slots=True, eq=False)
class Engine:
    """One inference engine. `identity` is None until it has answered, and while it does not.

    `local` says whether its address is this machine's, `is_here` whether the engine itself is here.
    `last_kind` is its kind when it last answered; `lost_unix_s` is when it stopped answering, None
    while it answers and before it first did. `asked_model` is the model of the last request, `used`
    has those of all requests, the last one first. `loading` is how it loads the weights of
    `models`. `listed` are its last model lists, by path. `wanted` requests a complete probe now.
    `scraper` is None until it is needed. `looked_at` is what ran at the last probe, `is_looked_at`
    says that a probe is in progress, and `look_over` signals the end of each. `is_late`: a request
    waited in vain for a probe, and none has found the engine since. `fingerprints` has the last
    system fingerprint in its replies, by requested model.
    """

    name: str
    url: str
    given: bool
    identity: Identity | None = None
    probe: Probe = field(default_factory=Probe)
    local: bool | None = None
    models: dict[str, ModelFacts] = field(default_factory=dict)
    loading: Loading = AS_IN_THE_FILES
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    slots: SlotLog = field(default_factory=SlotLog)
    activity: ActivityLog = field(default_factory=ActivityLog)
    scraper: Scraper | None = None
    asked_model: str | None = None
    used: tuple[str | None, ...] = ()
    found_at_s: float | None = None
    last_kind: Kind = "unknown"
    lost_unix_s: float | None = None
    listed: dict[str, dict[str, Any]] = field(default_factory=dict)
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    look_over: asyncio.Event = field(default_factory=asyncio.Event)
    is_looked_at: bool = False
    is_late: bool = False
    looked_at: Runs | None = None
    fingerprints: dict[str | None, str] = field(default_factory=dict)
    port: int = field(init=False)
    _reported: tuple[_Sources, Mapping[str, Any]] | None = None
    _facts: tuple[tuple[_Sources, float | None, Mapping[str, Any]], ServerFacts] | None = None

    def __post_init__(self) -> None:
        """Parse the port from the URL, once."""
        self.port = URL(self.url).port or 80

    def facts(
        self, process: ProcessFacts | None, model: str | None, facts_at_request: Mapping[str, Any]
    ) -> ServerFacts:
        """Return what the engine and its process report, with `facts_at_request` added.

        The same object is returned until something changes, because cached work depends on its
        identity.
        """
        sources = (self.identity, self.last_kind, self.probe, process, self.local, model)
        uptime_s, last = self._uptime_s(), self._facts
        key = (sources, uptime_s, facts_at_request)
        if last is None or last[0] != key:
            facts = {**self._reported_fields(sources), **facts_at_request, "uptime_s": uptime_s}
            self._facts = last = (key, ServerFacts(**facts))
        return last[1]

    def _uptime_s(self) -> float | None:
        """Return the full seconds since it was found, or found again, rounded up."""
        if self.found_at_s is None or self.identity is None:
            return None
        return float(math.ceil(time.monotonic() - self.found_at_s))

    def _reported_fields(self, sources: _Sources) -> Mapping[str, Any]:
        """Return the fields of `ServerFacts` from engine and process, cached until they change."""
        if self._reported is None or self._reported[0] != sources:
            identity, last_kind, probe, process, local, model = sources
            facts = server_facts(
                identity or Identity(kind=last_kind),
                probe,
                process,
                url=self.url,
                name=self.name,
                local=local,
                model=model,
            )
            self._reported = (
                sources,
                {name: getattr(facts, name) for name in ServerFacts.__slots__},
            )
        return self._reported[1]

    def is_here(self, process: ProcessFacts | None) -> bool | None:
        """Return whether it runs on this machine; `process` is who listens at its port."""
        return is_here(self.local, process, self.last_kind)

    def note_runs(self, process: ProcessFacts | None) -> None:
        """Request a probe if something else runs than at the last one.

        Another child of Ollama means that a model was reloaded, another process that the engine was
        restarted, perhaps as another build. What cannot be seen now has not changed.
        """
        runs = runs_of(process)
        if runs is not None and self.looked.is_set() and runs != self.looked_at:
            self.wanted.set()

    def note_reply(self, load_s: float | None, fingerprint: str | None) -> None:
        """Request a probe if a reply shows that a model was loaded, or that the build changed.

        `load_s` is how long the engine loaded its model for it.
        """
        if fingerprint is not None:
            if self.fingerprints.setdefault(self.asked_model, fingerprint) != fingerprint:
                self.wanted.set()
            self.fingerprints = {self.asked_model: fingerprint}
        if self.probe.loaded is None:
            return
        if not loaded_model(self.probe, self.asked_model):
            self.wanted.set()  # it has just loaded what the last look did not see
        elif (load_s or 0.0) > RELOAD_S:
            self.wanted.set()  # the same model, perhaps with another context, placed otherwise

    def is_another(self, before: Identity, ran: Runs | None) -> bool:
        """Return True if the engine was restarted since a probe that found `before` and `ran`.

        Judged by its process if that was visible both times, else by its version.
        """
        runs = self.looked_at
        if ran is not None and runs is not None:
            return ran[:2] != runs[:2]
        return self.identity is not None and self.identity.version != before.version

    def note_look_over(self) -> None:
        """Signal the end of a probe."""
        self.is_looked_at = False
        self.look_over.set()
        self.look_over.clear()

    async def wait_for_look(self, timeout_s: float) -> bool:
        """Wait until a wanted or running probe is over; False if that takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.wanted.is_set() or self.is_looked_at:
                    await self.look_over.wait()
        except TimeoutError:
            return False
        return True

    @property
    def kind(self) -> str:
        """The kind of engine; "unknown" until it was identified."""
        return self.identity.kind if self.identity else "unknown"

    def lookup(self, model: str | None) -> ModelFacts | None:
        """Return the model that a request means."""
        loaded = None if model is None else loaded_model(self.probe, model)
        names = (*meant_by(model or ""), *(() if loaded is None else (loaded.name,)))
        found = (self.models.get(name) for name in names)
        return next((facts for facts in found if facts), None)

    def serving(self, model: str | None) -> ModelFacts:
        """Return the facts of the requested model, or of the only one there is."""
        if not self.models:
            return only_named(model)
        only = next(iter(self.models.values())) if len(self.models) == 1 else None
        return self.lookup(model) or only or only_named(model)

    def serves(self, model: str | None) -> bool:
        """Return True if the engine lists a model by that name."""
        if model is None:
            return False
        names = set(self._names())
        return self.lookup(model) is not None or any(name in names for name in meant_by(model))

    def note_list(self, path: str, listed: dict[str, Any]) -> None:
        """Store a model list; new models in it are to be probed."""
        before = {*self._names(), *self.models}
        self.listed[path] = listed
        if set(self._names()) - before:
            self.wanted.set()

    def _names(self) -> Iterator[str]:
        data = self.listed.get(MODELS, {}).get("data")
        for entry in data if isinstance(data, list) else ():
            if isinstance(entry, Mapping):
                names = (entry.get("id"), *aliases_of(entry))
                yield from (name for name in names if isinstance(name, str))

    def port_of(self, model: str | None) -> int:
        """Return the port that runs `model`: that of an engine behind this one, if reported."""
        loaded = loaded_model(self.probe, model)
        behind = None if loaded is None or loaded.url is None else URL(loaded.url).port
        return behind or self.port

    @property
    def ports(self) -> tuple[int, ...]:
        """The engine's own port, then those of the engines behind it."""
        behind = (self.port_of(each.name) for each in self.probe.loaded or ())
        return tuple(dict.fromkeys((self.port, *behind)))

    def awaits_load(self, model: str | None) -> bool | None:
        """Return True if a request for `model` has to wait for its load; None if not known.

        A llama-server that is a router lists its loaded models. Ollama reports loads itself.
        """
        is_silent = self.kind in {"llama-swap", "llama-server"}
        if not is_silent or self.probe.loaded is None or not self.serves(model):
            return None
        most = self.probe.most_loaded
        if most and len(self.used) >= most and (self.wanted.is_set() or self.is_looked_at):
            return model not in self.used[:most]  # the list of what is loaded is an old one
        loaded = loaded_model(self.probe, model)
        return loaded is None or bool(loaded.sleeping)

    def note_asked(self, model: str | None) -> None:
        """Note that a request for `model` is about to be sent."""
        self.asked_model = model
        others = (each for each in self.used if each != model)
        self.used = (model, *others)[:MOST_USED]

    @property
    def sleeping(self) -> bool | None:
        """Whether it has unloaded its model; None if it does not report that."""
        return self.probe.sleeping

    @property
    def version(self) -> str | None:
        """The reported version."""
        return self.probe.version or (self.identity.version if self.identity else None)

    @property
    def scrape_failures(self) -> int:
        """How often its `/metrics` could not be read."""
        return 0 if self.scraper is None else self.scraper.failures


def facts_at(
    engine: Engine | None,
    process: ProcessFacts | None,
    model: str | None,
    facts_at_request: Mapping[str, Any],
) -> tuple[ServerFacts, ModelFacts]:
    """Return the facts about an engine and the model that it serves, for a request.

    `facts_at_request` are further fields of the former, as of the request. Without an engine,
    little is known.
    """
    if engine is None:
        return ServerFacts(**facts_at_request), only_named(model)
    return engine.facts(process, model, facts_at_request), engine.serving(model)
