"""Numbers as people say them: counts, lengths of time, moments, shares, sizes. Pure."""

from datetime import datetime

GIB, MIB = 2**30, 2**20


def seconds(milliseconds: float) -> str:
    """Return a duration as people say it."""
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds:.0f} ms"


def counted(count: int, noun: str) -> str:
    """Return `1 request`, `2 requests`, `1,000 requests`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(milliseconds: float) -> str:
    """Return a length of time as people say it."""
    time_s = milliseconds / 1000
    for length_s, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if time_s >= 2 * length_s:
            return f"{time_s / length_s:.1f} {unit}"
    return f"{time_s:.1f} s"


def percent(ratio: float | None) -> str:
    """Return a share; empty where it is not known."""
    return "" if ratio is None else f"{100 * ratio:.{0 if ratio >= 0.0995 else 1}f} %"


def clock(text: str) -> str:
    """Return a moment to the minute, without its time zone."""
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M}"
