"""An engine, and a proxy in front of it: what a client gets must not depend on which it asks."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fakes.running import RunningProxy

T = TypeVar("T")
MESSAGES: Any = [{"role": "user", "content": "Name three colours."}]
WEATHER: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Both:
    """The address of the engine itself, and the proxy."""

    direct: str
    proxy: RunningProxy

    def same(self, ask: Callable[[str], T]) -> T:
        """Ask directly and through the proxy; return the answer, which has to be the same.

        The first of three answers is not compared: it fills the engine's prompt cache, and a model
        computes slightly otherwise with it.
        """
        ask(self.direct)
        direct, relayed = ask(self.direct), ask(self.proxy.url)
        assert relayed == direct
        return relayed

    def newest(self) -> dict[str, Any]:
        """The record of the last request; a stream's comes a moment after its last byte."""
        for _ in range(200):
            asked = self.proxy.get("/slowtok/status")["counts"]["requests"]
            records: list[dict[str, Any]] = self.proxy.get("/slowtok/requests")
            if len(records) == asked:
                return records[0]
            threading.Event().wait(0.02)
        raise AssertionError("a request has no record")
