"""Records for human eyes: one line a request, in the room there is. Pure: records in, text out.

Everything that came from outside (model names, paths) is stripped of control characters.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import orjson
from rich.table import Table
from rich.text import Text

from slowtok.proxy.cli.render.units import seconds
from slowtok.proxy.outputs.log import escaped

VERDICT_STYLES = {"slow": "bold red", "normal": "green", "unknown": "yellow"}
SHORT_ID_CHARS = 8
NAME_RATIO, LEAST_NAME_CHARS, MAX_NAME_CHARS = 1 / 8, 8, 28  # of a terminal's columns
NOTHING, LONG_ID, CONFIDENCE, DETAILS, OTHER_PHASES, WORDS, NAME, NUMBERS, PHASE = range(9)
"""What is left out of a line where there is little room, in this order."""
GAP_CHARS = 2
SECOND_CHARS, ZONE_CHARS = 19, 6  # of a record's time: all but the fraction of the second
WAITS = (("queue", "queue_ms", 100), ("load", "load_ms", 1000))  # shorter ones are not shown

Record = Mapping[str, Any]
Part = tuple[str, str]  # a text and its style


def is_telling(record: Record) -> bool:
    """Return True if people want to see the line of this request: a generation, or a failure."""
    return "verdict" in record or (record.get("status") or 0) >= 500


def request_line(record: Record, width: int | None = None) -> Text:
    """Return the line of one finished request, whole, or so that it fits into `width` columns.

    Then the name has a column of its own, and the id stands at the right edge. Where there is
    little room, what matters least goes first: all of the id but its end (by which `slowtok
    explain` finds it, too), details of numbers, the phases that were not slow, words, the name of
    the model; then, where a cause is named, its numbers and the phase. The cause, what it cost and
    the id stay.
    """
    if width is None:
        return _styled([*_parts(record, NOTHING, None), (f"  {record['id']}", "dim")])
    lines = (_fitted(record, spared, width) for spared in range(PHASE + 1))
    return next((line for line in lines if line is not None), None) or _cut(record, width)


def plain_line(record: Record) -> str:
    """Return the same without colours, whole: a fraction of the work."""
    texts = "".join([text for text, _ in _parts(record, NOTHING, None)])
    return plain(f"{texts}  {record['id']}")


def _fitted(record: Record, spared: int, width: int) -> Text | None:
    """Return the line with the id at its right edge; None where it does not fit."""
    line = _styled(_parts(record, spared, width))
    name = _id(record, spared)
    room = width - line.cell_len - len(name)
    return line.append(f"{'':<{room}}{name}", "dim") if room >= GAP_CHARS else None


def _cut(record: Record, width: int) -> Text:
    """Return what fits of the shortest line, before the id."""
    line, name = _styled(_parts(record, PHASE, width)), f"  {_id(record, PHASE)}"
    line.truncate(max(width - len(name), 1), overflow="ellipsis")
    line.append(name, "dim").truncate(width)
    return line


def _styled(parts: Iterable[Part]) -> Text:
    return Text.assemble(*((plain(text), style) for text, style in parts), end="")


def _id(record: Record, spared: int) -> str:
    name = plain(str(record["id"]))
    return name if spared < LONG_ID else name[-SHORT_ID_CHARS:]


def _parts(record: Record, spared: int, width: int | None) -> list[Part]:
    """Return the pieces of the line without its id, each with its style; not yet plain."""
    ts, verdict, phase = str(record["ts"]), str(record.get("verdict", "-")), record.get("phase")
    word = f"{verdict} {phase}" if phase and spared < PHASE else verdict
    parts = [
        (_clock(ts[:SECOND_CHARS] + ts[-ZONE_CHARS:]), "dim"),
        (f" {word:<13}" if spared < PHASE else f" {word}", VERDICT_STYLES.get(verdict, "")),
    ]
    if spared < NAME:
        parts.append((f" {_name(record, width)}", ""))
    causes = named(record)
    if spared < NUMBERS or not causes:
        parts.append(("  ".join(["", *_numbers(record, spared)]), ""))
    for finding in causes[:1]:
        parts.append((f"  {finding['cause']}", "bold"))
        sure = f" {finding['confidence']:.2f}" if spared < CONFIDENCE else ""
        parts.append((f"{sure} lost {seconds(finding['lost_ms'])}", ""))
    if verdict == "slow" and not causes:
        parts.append(("  cause not visible", "bold"))
    if verdict == "unknown" and record.get("reason"):
        parts.append((f"  ({record['reason']})", "dim"))
    return parts


def _name(record: Record, width: int | None) -> str:
    """Return the model's name; of one that is too long the end, which tells sizes and types."""
    name = str(record.get("model") or record.get("path", ""))
    if width is None:
        return name
    most = min(max(int(width * NAME_RATIO), LEAST_NAME_CHARS), MAX_NAME_CHARS)
    return f"{name:<{most}}" if len(name) <= most else f"…{name[1 - most :]}"


def named(record: Record) -> list[Mapping[str, Any]]:
    """Return the findings that explain a slow request, without the informational ones."""
    findings = record.get("findings")
    return [f for f in findings if not f.get("informational")] if findings else []


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


def _numbers(record: Record, spared: int) -> list[str]:
    """Return the times and rates; with `WORDS` left out only those of the phase that was slow."""
    timing, rate, phase = record.get("timing", {}), record.get("rate", {}), record.get("phase")
    parts = []
    if record.get("status", 200) != 200:
        why = "" if spared >= WORDS and record.get("reason") else f" {record.get('ended')}"
        parts.append(f"{record.get('status')}{why}")
    alone = phase if spared >= OTHER_PHASES else None  # where there is little room
    for name, key, least_ms in WAITS:
        if timing.get(key, 0) >= least_ms and alone in (None, name):
            parts.append(f"{name} {seconds(timing[key])}")
    is_short = spared >= OTHER_PHASES and phase != "prefill"
    if "prefill_ms" in timing and not is_short and "prompt" in record.get("tokens", {}):
        tokens = record["tokens"]
        is_told = tokens.get("cached") and spared < DETAILS
        cached = f" ({tokens['cached']} cached)" if is_told else ""
        parts.append(f"prefill {tokens['prompt']}{cached} {seconds(timing['prefill_ms'])}")
    if "decode_tps" in rate and alone in (None, "decode", "delivery"):
        parts.append(_decode(record, spared))
    elif "total_ms" in timing and "decode_tps" not in rate:
        parts.append(seconds(timing["total_ms"]))
    return parts


def _decode(record: Record, spared: int) -> str:
    """Return the rate of the decode, with its band where there is room or where it was slow."""
    tps, expected = record["rate"]["decode_tps"], record.get("expected", {})
    is_slow = record.get("phase") == "decode"
    if spared >= WORDS and is_slow and "decode_low_tps" in expected:
        low, high = expected["decode_low_tps"], expected["decode_high_tps"]
        return f"{tps:.1f} of {low:.0f}-{high:.0f}/s"
    band = band_words(record) if is_slow or spared < OTHER_PHASES else ""
    return f"decode {record['tokens']['completion']} at {tps:.1f}/s{band}"


def band_words(record: Record) -> str:
    """Return the expected rates in brackets; empty where they are not known."""
    expected = record.get("expected", {})
    if "decode_low_tps" not in expected:
        return ""
    return f" (expect {expected['decode_low_tps']:.0f}-{expected['decode_high_tps']:.0f})"


@lru_cache(maxsize=2)
def _clock(ts: str) -> str:
    return datetime.fromisoformat(ts).astimezone().strftime("%H:%M:%S")


def hanging(
    mark: str, said: str | Text, style: str = "", *, mark_style: str | None = None
) -> Table:
    """Return a mark with a text beside it; however often the text wraps, it stays beside it.

    `mark` may begin with spaces, which indent all of it; the text's own styles come on top of
    `style`.
    """
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    text = said if isinstance(said, Text) else Text(said)
    text.style = text.style or style
    grid.add_row(Text(mark, style if mark_style is None else mark_style), text)
    return grid


def json_text(told: Any) -> str:
    """Return it as JSON, indented, without a character that could steer a terminal."""
    return escaped(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())
