"""One inference server, as it was last seen."""

import asyncio
from dataclasses import dataclass, field

from yarl import URL

from slowtok.detectors.engine import ModelFacts
from slowtok.proxy.servers.activity import ActivityLog
from slowtok.proxy.servers.facts import Identity, Probe
from slowtok.proxy.servers.scraper import Scraper
from slowtok.proxy.servers.server_facts import meant_by
from slowtok.proxy.servers.slots import SlotLog


@dataclass(slots=True, eq=False)
class Engine:
    """One inference server. `identity` is None until it answered, and while it does not.

    `asked_model` is the model that the last request was for. `scraper` is None until it is needed.
    """

    name: str
    url: str
    given: bool
    identity: Identity | None = None
    probe: Probe = field(default_factory=Probe)
    local: bool | None = None
    models: dict[str, ModelFacts] = field(default_factory=dict)
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    slots: SlotLog = field(default_factory=SlotLog)
    activity: ActivityLog = field(default_factory=ActivityLog)
    scraper: Scraper | None = None
    asked_model: str | None = None
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

    @property
    def scrape_failures(self) -> int:
        """How often its `/metrics` could not be read."""
        return 0 if self.scraper is None else self.scraper.failures
