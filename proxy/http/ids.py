"""Identifiers of a request: UUIDv7 and W3C traceparent."""

import os


def make_request_id(unix_s: float) -> str:
    """Return a UUIDv7 (RFC 9562, section 5.7) for a request accepted at `unix_s`."""
    milliseconds = int(unix_s * 1000) & ((1 << 48) - 1)
    drawn = int.from_bytes(os.urandom(10)) & ~(0xF << 76 | 0b11 << 62)
    text = f"{milliseconds << 80 | 0x7 << 76 | 0b10 << 62 | drawn:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def make_traceparent(*, recorded: bool = False) -> str:
    """Return a fresh W3C traceparent (version 00); `recorded` says that its span will be told."""
    drawn = os.urandom(24).hex()
    flags = "01" if recorded else "00"
    return f"00-{drawn[:32]}-{drawn[32:]}-{flags}"
