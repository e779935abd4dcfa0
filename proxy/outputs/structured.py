"""Structured field values for HTTP (RFC 9651): the few forms that our headers use. Pure."""

import math
from collections.abc import Iterable, Mapping

Bare = int | float | str
MAX_STRING_CHARS = 240
_MAX_INTEGER = 999_999_999_999_999
_MAX_DECIMAL = 999_999_999_999.0


def item(value: str, params: Mapping[str, Bare | None] | None = None) -> str:
    """Return a serialised bare value with its parameters; those that are None are left out."""
    kept = [f";{key}={bare(v)}" for key, v in (params or {}).items() if v is not None]
    return value + "".join(kept)


def inner_list(values: Iterable[Bare]) -> str:
    """Return an inner list, `(14.2 19.0)`."""
    return "(" + " ".join(bare(value) for value in values) + ")"


def bare(value: Bare) -> str:
    """Serialise an integer, a decimal or a string."""
    if isinstance(value, float):
        return decimal(value)
    if isinstance(value, int):
        return str(max(min(value, _MAX_INTEGER), -_MAX_INTEGER))
    return string(value)


def decimal(value: float, digits: int = 3) -> str:
    """Serialise a decimal, rounded to at most `digits` fraction digits (one to three)."""
    if abs(value) > _MAX_DECIMAL:
        value = math.copysign(_MAX_DECIMAL, value)
    text = f"{value:.{digits}f}".rstrip("0")
    return f"{text}0" if text[-1] == "." else text


def string(text: str) -> str:
    """Serialise a string: printable ASCII only, bounded, quotes and backslashes escaped."""
    plain = text
    if not (text.isascii() and text.isprintable()):
        plain = "".join(c if " " <= c <= "~" else "?" for c in text)
    if len(plain) > MAX_STRING_CHARS:
        plain = plain[: MAX_STRING_CHARS - 3] + "..."
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
