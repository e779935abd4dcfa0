"""Endings that cut a request short, each with why there is no verdict and what to check.

A request that was not cut short ended with the engine's own finish reason, with `http-error`, or
with `complete` if the reply was not parsed (`case.Ending`).
"""

from collections.abc import Mapping
from enum import StrEnum


class CutShort(StrEnum):
    """What ended a request before its answer was complete: the value of `ended` in records."""

    reason: str
    hint: str | None

    def __new__(cls, name: str, reason: str, hint: str | None = None) -> "CutShort":
        """Create a member with its reason, and what to check if somebody can do something."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.reason = reason
        member.hint = hint
        return member

    NO_ENGINE = (
        "no-engine",
        "there was no engine to ask",
        "start llama-server, vLLM or Ollama, or name one with --upstream URL",
    )
    UPSTREAM_REFUSED = (
        "upstream-refused",
        "the engine could not be reached",
        "check that the engine is running and that this is its address (--upstream URL sets it)",
    )
    UPSTREAM_ERROR = (
        "upstream-error",
        "the engine broke off, or reported an error",
        "check whether the engine crashed or restarted; its own log says more",
    )
    TIMEOUT = (
        "timeout",
        "the engine did not answer in time",
        "check that the machine can be reached and that no firewall drops the connection",
    )
    OVERLOADED = (
        "overloaded",
        "slowtok had no file descriptor or no memory left for the request",
        (
            "raise the limit of open files (ulimit -n), or lower max_connections; where memory was "
            "the limit, raise max_held_bytes"
        ),
    )
    CLIENT_GONE = ("client-gone", "the client left before the end")
    PROXY_STOPPED = ("proxy-stopped", "slowtok was stopped before the end")


CUT_SHORT: Mapping[str, CutShort] = {str(ending): ending for ending in CutShort}

WHAT_TO_CHECK: Mapping[str, str] = {
    str(ending): ending.hint for ending in CutShort if ending.hint is not None
}
"""What to look at, by how a request was cut short: its error reply says so, too."""
