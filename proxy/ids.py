"""Identifiers of a request: UUIDv7 and W3C traceparent."""

import secrets
import uuid


def make_request_id(unix_s: float) -> str:
    """Return a UUIDv7 (RFC 9562, section 5.7) for a request accepted at `unix_s`."""
    milliseconds = int(unix_s * 1000) & ((1 << 48) - 1)
    bits = milliseconds << 80 | 0x7 << 76 | secrets.randbits(12) << 64
    return str(uuid.UUID(int=bits | 0b10 << 62 | secrets.randbits(62)))


def make_traceparent(*, recorded: bool = False) -> str:
    """Return a fresh W3C traceparent (version 00); `recorded` says that its span will be told."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{recorded:02d}"
