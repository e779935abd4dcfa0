"""Settings of a relaying process, as plain values.

A relaying process does without pydantic, which all settings need and which takes 10 MiB.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slowtok.config.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """The settings that a relaying process needs, under the names of the user's settings.

    `max_held_bytes` is this process's share of the memory budget. A larger body or reply could
    never be admitted, so `max_body_bytes` and `max_reply_bytes` are at most that.
    """

    host: str
    is_local: bool
    allow_host: tuple[str, ...]
    allow_origin: tuple[str, ...]
    api_key: str
    max_connections: int
    max_head_bytes: int
    max_body_bytes: int
    max_reply_bytes: int
    max_held_bytes: int
    connect_timeout_s: float
    client_timeout_s: float
    head_timeout_s: float
    grace_s: float
    annotate: str
    split_nonstreamed: str
    records_traces: bool


def relay_settings(settings: "Settings") -> RelaySettings:
    """Return the settings for each relaying process."""
    held_bytes = settings.max_held_bytes // settings.workers
    return RelaySettings(
        host=settings.host,
        is_local=settings.is_local,
        allow_host=tuple(settings.allow_host),
        allow_origin=tuple(settings.allow_origin),
        api_key=settings.api_key.get_secret_value(),
        max_connections=settings.max_connections,
        max_head_bytes=settings.max_head_bytes,
        max_body_bytes=min(settings.max_body_bytes, held_bytes),
        max_reply_bytes=min(settings.max_reply_bytes, held_bytes),
        max_held_bytes=held_bytes,
        connect_timeout_s=settings.connect_timeout_s,
        client_timeout_s=settings.client_timeout_s,
        head_timeout_s=settings.head_timeout_s,
        grace_s=settings.grace_s,
        annotate=settings.annotate,
        split_nonstreamed=settings.split_nonstreamed,
        records_traces=bool(settings.otlp_endpoint),
    )
