"""Structured field values for HTTP (RFC 9651): the few forms that our headers use. Pure."""

from collections.abc import Iterable, Mapping

Bare = int | float | str
MAX_STRING_CHARS = 240


def item(value: str, params: Mapping[str, Bare | None] | None = None) -> str:
    """Return a serialised bare value with its parameters; those that are None are left out."""
    kept = ((k, v) for k, v in (params or {}).items() if v is not None)
    return value + "".join(f";{key}={bare(v)}" for key, v in kept)


def inner_list(values: Iterable[Bare]) -> str:
    """Return an inner list, `(14.2 19.0)`."""
    return "(" + " ".join(bare(value) for value in values) + ")"


def bare(value: Bare) -> str:
    """Serialise an integer, a decimal (one to three fraction digits) or a string."""
    if isinstance(value, str):
        return string(value)
    if isinstance(value, int):
        return str(max(min(value, 999_999_999_999_999), -999_999_999_999_999))
    bounded = max(min(value, 999_999_999_999.0), -999_999_999_999.0)
    digits = f"{bounded:.3f}".rstrip("0")
    return digits + "0" if digits.endswith(".") else digits


def string(text: str) -> str:
    """Serialise a string: printable ASCII only, bounded, quotes and backslashes escaped."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text)
    if len(plain) > MAX_STRING_CHARS:
        plain = plain[: MAX_STRING_CHARS - 3] + "..."
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
