"""One request in full, for human eyes. Pure: a record in, text out.

Everything that came from outside is stripped of control characters.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from slowtok.detectors.case.ending import WHAT_TO_CHECK
from slowtok.detectors.diagnosis.clearance import GPU_CAUSES
from slowtok.proxy.cli.render.console import (
    VERDICT_STYLES,
    Record,
    band_words,
    hanging,
    named,
    tamed,
)
from slowtok.proxy.cli.render.units import GIB, seconds

Entry = Mapping[str, Any]

_PERCENT = 100


def explanation(record: Record) -> RenderableType:
    """Return one request in full."""
    record = tamed(record)
    parts: list[RenderableType] = [_head(record), _times(record)]
    if record.get("verdict", "unknown") == "unknown" and record.get("ended") in WHAT_TO_CHECK:
        parts.append(hanging("What to do:", WHAT_TO_CHECK[record["ended"]], mark_style="bold"))
    if record.get("expected", {}).get("basis"):
        parts.extend(_expectation(record))
    for finding in record.get("findings", ()):
        parts.extend(_finding(finding))
    if record.get("verdict") == "slow" and not named(record):
        said = "No known cause fits, although slowtok could see everything that it needs for them."
        if record.get("not_visible"):
            said = (
                "No known cause fits. slowtok does not guess: the cause may be in what was not "
                "visible (below)."
            )
        parts.append(Text(f"\n{said}", "bold"))
    why = record.get("host", {}).get("why")
    is_whole = record.get("ended") not in WHAT_TO_CHECK
    if why is not None and is_whole and record.get("verdict") != "normal":
        said = (
            f"\nReadings of the machine were missing: {why}. So slowtok did not look for causes in "
            "the machine."
        )
        parts.append(Text(said, "bold"))
    parts.extend(_rest(record))
    return Group(*parts)


def _rest(record: Record) -> Iterator[RenderableType]:
    """Yield what stands below the findings: budget, GPUs, what was ruled out or not visible."""
    budget = record.get("budget_ms_per_token")
    if budget:
        shares = ", ".join(f"{cause} {ms:.2f}" for cause, ms in budget.items())
        yield Text()
        yield hanging("Lost per token (ms):", shares)
    gpus = [gpu_line(entry) for entry in record.get("gpu", ())]
    if gpus:
        yield Text()
        for said in gpus:
            mark, _, rest = said.partition(": ")
            yield hanging(f"{mark}:", rest, "dim")
    if record.get("cleared"):
        yield hanging("Ruled out:", ", ".join(_ruled_out(record)), "dim")
    if record.get("unused"):
        yield hanging(
            "Present, but without a cost that can be measured:", ", ".join(record["unused"]), "dim"
        )
    for hidden in record.get("not_visible", ()):
        said = f"{hidden['fact']} ({hidden['how_to_enable']})"
        yield hanging("Not visible:", said, "dim")


def _ruled_out(record: Record) -> list[str]:
    """Return the causes that were ruled out; where no GPU is seen, those that need one as one."""
    cleared = list(record["cleared"])
    rest = [cause for cause in cleared if cause not in GPU_CAUSES]
    if record.get("gpu") or not GPU_CAUSES.issubset(cleared):
        return cleared
    return [f"all that needs a GPU ({len(cleared) - len(rest)} causes; no GPU is seen here)", *rest]


def _head(record: Record) -> Text:
    verdict = str(record.get("verdict", "no verdict"))
    word = f"{verdict}, {record['phase']}" if record.get("phase") else verdict
    text = Text()
    text.append(word.upper(), VERDICT_STYLES.get(verdict, ""))
    if record.get("reason"):
        text.append(f" ({record['reason']})")
    text.append(f"\n{record.get('model') or 'no model named'}{_where(record)}\n")
    when = datetime.fromisoformat(str(record["ts"])).astimezone()
    text.append(f"{when:%Y-%m-%d %H:%M:%S}  {record['path']}  {record['id']}", "dim")
    return text


def _where(record: Record) -> str:
    upstream = record.get("upstream", {})
    kind, url = upstream.get("kind", "unknown"), upstream.get("url")
    if url is None:
        return ", no engine" if kind == "unknown" else f" on {kind}"
    return f" on {'an engine' if kind == 'unknown' else kind} at {url}"


def _times(record: Record) -> Table:
    timing, tokens, rate = (record.get(k, {}) for k in ("timing", "tokens", "rate"))
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    cached = f", {tokens['cached']} cached" if "cached" in tokens else ""
    prompt = f"{_tokens(tokens, 'prompt')}{cached}{_per_second(rate.get('prefill_tps'))}"
    answer = f"{_tokens(tokens, 'completion')}{_per_second(rate.get('decode_tps'))}"
    rows = (
        ("queue", "queue_ms", ""),
        ("load", "load_ms", ""),
        ("prefill", "prefill_ms", prompt),
        ("decode", "decode_ms", f"{answer}{band_words(record)}"),
        ("delivery", "delivery_ms", ""),
        (
            "total",
            "total_ms",
            f"first token after {seconds(timing['ttft_ms'])}" if "ttft_ms" in timing else "",
        ),
    )
    for name, key, words in rows:
        if key in timing:
            table.add_row(name, seconds(timing[key]), words)
    return table


def _tokens(tokens: Record, name: str) -> str:
    count = tokens.get(name, "?")
    return f"{count} token{'' if count == 1 else 's'}"


def _per_second(rate: float | None) -> str:
    return "" if rate is None else f" at {rate:.1f}/s"


def _expectation(record: Record) -> Iterator[RenderableType]:
    expected = record["expected"]
    yield Text()
    yield hanging("Expected:", str(expected["basis"]), mark_style="bold")
    for reason in expected.get("because", ()):
        yield _indented(Text(str(reason), "dim"), 2)


def _finding(finding: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text()
    yield Text(finding["cause"], "bold").append(f"  {_weight(finding)}", "not bold")
    yield _indented(Text(finding["summary"]), 2)
    for e in finding.get("evidence", ()):
        limit = f" (limit {e['limit']:g})" if "limit" in e else ""
        said = f"{e['name']} = {e['value']:g} {e['unit']}".rstrip()
        yield _indented(Text(f"{said}{limit}", "dim"), 4)
    yield hanging("  Remedy:", finding["remedy"])


def _weight(finding: Mapping[str, Any]) -> str:
    """Return how sure a finding is and what it cost; a symptom's loss is in its root's."""
    if finding.get("informational"):
        return "for your information"
    lost_ms = finding["lost_ms"]
    lost = f"lost {seconds(lost_ms)}" if lost_ms else "its loss is counted under its root cause"
    return f"confidence {finding['confidence']:.2f}, {lost}"


def _indented(said: Text, columns: int) -> Padding:
    return Padding(said, (0, 0, 0, columns), expand=False)


def gpu_line(entry: Entry) -> str:
    """Return one GPU of a record in a line: how it fared, why its clocks were lower, its memory."""
    name = f"GPU {entry['index']}" + (f" {entry['name']}" if "name" in entry else "")
    return f"{name}: {'; '.join(_parts(entry)) or 'its driver told nothing'}"


def _parts(entry: Entry) -> Iterator[str]:
    parts = (_load(entry), _heat(entry), _reasons(entry), _energy(entry), _memory(entry))
    return (part for part in parts if part)


def _load(entry: Entry) -> str:
    words = []
    if "busy_ratio" in entry:
        words.append(f"{_PERCENT * _median(entry, 'busy_ratio'):.0f} % busy")
    if "dram_busy_ratio" in entry:
        words.append(f"{_PERCENT * _median(entry, 'dram_busy_ratio'):.0f} % of its bandwidth")
    if "power_w" in entry:
        limit = f" of {_median(entry, 'power_limit_w'):.0f}" if "power_limit_w" in entry else ""
        words.append(f"{_median(entry, 'power_w'):.0f}{limit} W")
    if "sm_clock_mhz" in entry:
        words.append(f"{_median(entry, 'sm_clock_mhz'):.0f} MHz")
    return ", ".join(words)


def _heat(entry: Entry) -> str:
    if "temperature_c" not in entry:
        return ""
    margin = (
        f" ({_median(entry, 'temperature_margin_c'):.0f} C below its limit)"
        if "temperature_margin_c" in entry
        else ""
    )
    return f"{_median(entry, 'temperature_c'):.0f} C{margin}"


def _reasons(entry: Entry) -> str:
    """Return for how much of the time each reason held the clocks down; idleness is none."""
    shares = {name: share for name, share in entry.get("reasons", {}).items() if name != "gpu-idle"}
    said = ", ".join(f"{name} {_PERCENT * share:.0f} %" for name, share in shares.items())
    return f"clocks held down by {said} of the time" if said else ""


def _energy(entry: Entry) -> str:
    if "energy_j_per_token" not in entry:
        return ""
    return f"{entry['energy_j_per_token']:.2g} J per token"


def _memory(entry: Entry) -> str:
    vram = entry.get("vram")
    if not vram:
        return ""
    others = vram.get("others", ())
    held = [
        ("server", vram.get("server_bytes")),
        *((str(other.get("name") or other["pid"]), other.get("bytes")) for other in others),
        ("hidden", vram.get("hidden_bytes")),
        ("free", vram.get("free_bytes")),
    ]
    said = ", ".join(f"{name} {count / GIB:.1f}" for name, count in held if count is not None)
    return f"memory (GiB): {said} of {vram['total_bytes'] / GIB:.1f}"


def _median(entry: Entry, name: str) -> float:
    return float(entry[name]["median"])
