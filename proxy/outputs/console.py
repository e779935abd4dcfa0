"""Records for human eyes: one line a request, in the room there is. Pure: records in, text out.

Everything that came from outside (model names, paths) is stripped of control characters.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from rich.text import Text

VERDICT_STYLES = {"slow": "bold red", "normal": "green", "unknown": "yellow"}
LONG_NAME_CHARS, SHORT_NAME_CHARS = 28, 16
SHORT_ID_CHARS = 8
SHORT_ID_FROM, RATE_ALONE_FROM, MOST_SPARED = 3, 4, 5
SECOND_CHARS, ZONE_CHARS = 19, 6  # of a record's time: all but the fraction of the second

Record = Mapping[str, Any]


def is_telling(record: Record) -> bool:
    """Say whether people want to see the line of this request: a generation, or a failure."""
    return "verdict" in record or (record.get("status") or 0) >= 500


def request_line(record: Record, width: int | None = None) -> Text:
    """Return the line of one finished request, whole, or so that it fits into `width` columns.

    Where there is little room, what matters least goes first: details of numbers, the prefill, all
    of the id but its end (by which `slowtok explain` finds it, too), every number but the rate;
    what is too long then is cut.
    """
    if width is None:
        return _line(record, 0)
    lines = (_line(record, spared) for spared in range(MOST_SPARED + 1))
    line = next((line for line in lines if line.cell_len <= width), _line(record, MOST_SPARED))
    line.truncate(width, overflow="ellipsis")
    return line


def plain_line(record: Record) -> str:
    """Return the same without colours, whole: a fraction of the work."""
    return plain("".join([text for text, _ in _parts(record, 0)]))


def _line(record: Record, spared: int) -> Text:
    """Return the line; `spared` (0 to `MOST_SPARED`) says how much is left out."""
    pieces = [(plain(text), style) for text, style in _parts(record, spared)]
    return Text.assemble(*pieces, end="")


def _parts(record: Record, spared: int) -> Iterator[tuple[str, str]]:
    """Yield the pieces of the line, each with its style."""
    ts = str(record["ts"])
    yield _clock(ts[:SECOND_CHARS] + ts[-ZONE_CHARS:]), "dim"
    verdict = str(record.get("verdict", "-"))
    word = f"{verdict} {record['phase']}" if record.get("phase") else verdict
    yield f" {word:<13}", VERDICT_STYLES.get(verdict, "")
    yield f" {_name(record, (None, LONG_NAME_CHARS, SHORT_NAME_CHARS)[min(spared, 2)])}", ""
    for part in _numbers(record, spared):
        yield f"  {part}", ""
    for finding in named(record)[:1]:
        yield f"  {finding['cause']}", "bold"
        sure = "" if spared else f" {finding['confidence']:.2f}"
        yield f"{sure} lost {seconds(finding['lost_ms'])}", ""
    if verdict == "slow" and not named(record):
        yield "  cause not visible", "bold"
    if verdict == "unknown" and record.get("reason"):
        yield f"  ({plain(str(record['reason']))})", "dim"
    name = str(record["id"])
    if spared < MOST_SPARED:
        yield f"  {name if spared < SHORT_ID_FROM else name[-SHORT_ID_CHARS:]}", "dim"


def _name(record: Record, most_chars: int | None) -> str:
    """Return the model's name; of one that is too long the end, which tells sizes and types."""
    name = plain(str(record.get("model") or record.get("path", "")))
    return name if most_chars is None or len(name) <= most_chars else f"…{name[1 - most_chars :]}"


def named(record: Record) -> list[Mapping[str, Any]]:
    """Return the findings that explain a slow request, without the informational ones."""
    return [f for f in record.get("findings", ()) if not f.get("informational")]


def plain(text: str) -> str:
    """Strip control characters, so that nothing foreign can steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "?" for c in text)


def tamed(value: Any) -> Any:
    """Return a record, or a part of it, with all its texts plain: a log may come from elsewhere."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {plain(str(key)): tamed(one) for key, one in value.items()}
    return [tamed(one) for one in value] if isinstance(value, list) else value


def seconds(milliseconds: float) -> str:
    """Return a duration as people say it."""
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds:.0f} ms"


def number(value: float) -> str:
    """Return a number with three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _numbers(record: Record, spared: int = 0) -> list[str]:
    tokens, timing, rate = (record.get(k, {}) for k in ("tokens", "timing", "rate"))
    parts = []
    if record.get("status", 200) != 200:
        parts.append(f"{record.get('status')} {record.get('ended')}")
    if "decode_tps" in rate and spared >= RATE_ALONE_FROM:
        return [*parts, f"{rate['decode_tps']:.1f}/s"]
    if timing.get("queue_ms", 0) >= 100:
        parts.append(f"queue {seconds(timing['queue_ms'])}")
    if timing.get("load_ms", 0) >= 1000:
        parts.append(f"load {seconds(timing['load_ms'])}")
    if "prompt" in tokens and "prefill_ms" in timing and spared < 2:
        cached = f" ({tokens['cached']} cached)" if tokens.get("cached") else ""
        parts.append(f"prefill {tokens['prompt']}{cached} {seconds(timing['prefill_ms'])}")
    if "decode_tps" in rate:
        band = "" if spared else band_words(record)
        parts.append(f"decode {tokens['completion']} at {rate['decode_tps']:.1f}/s{band}")
    elif "total_ms" in timing:
        parts.append(seconds(timing["total_ms"]))
    return parts


def band_words(record: Record) -> str:
    """Return the expected rates in brackets; empty where they are not known."""
    expected = record.get("expected", {})
    if "decode_low_tps" not in expected:
        return ""
    return f" (expect {expected['decode_low_tps']:.0f}-{expected['decode_high_tps']:.0f})"


@lru_cache(maxsize=2)
def _clock(ts: str) -> str:
    return datetime.fromisoformat(ts).astimezone().strftime("%H:%M:%S")
