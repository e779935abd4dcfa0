"""Records for human eyes: one line a request, and one request in full. Pure: records in, text out.

Everything that came from outside (model names, paths) is stripped of control characters.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slowtok.proxy.outputs.gpu_text import gpu_line

VERDICT_STYLES = {"slow": "bold red", "normal": "green", "unknown": "yellow"}
MAX_NAME_CHARS = 28

Record = Mapping[str, Any]


def is_telling(record: Record) -> bool:
    """Say whether people want to see the line of this request: a generation, or a failure."""
    return "verdict" in record or (record.get("status") or 0) >= 500


def request_line(record: Record) -> Text:
    """Return the line of one finished request."""
    line = Text(_clock(record), style="dim", end="")
    verdict = str(record.get("verdict", "-"))
    word = f"{verdict} {record['phase']}" if record.get("phase") else verdict
    line.append(f" {word:<13}", VERDICT_STYLES.get(verdict, ""))
    line.append(f" {plain(str(record.get('model') or record.get('path', '')))[-MAX_NAME_CHARS:]}")
    for part in _numbers(record):
        line.append("  ")
        line.append(part)
    for finding in named(record)[:1]:
        line.append(f"  {finding['cause']}", "bold")
        line.append(f" {finding['confidence']:.2f} lost {seconds(finding['lost_ms'])}")
    if verdict == "slow" and not named(record):
        line.append("  cause not visible", "bold")
    if verdict == "unknown" and record.get("reason"):
        line.append(f"  ({plain(str(record['reason']))})", "dim")
    line.append(f"  {record['id']}", "dim")
    return line


def explanation(record: Record) -> RenderableType:
    """Return one request in full."""
    parts: list[RenderableType] = [_head(record), _times(record)]
    if record.get("expected", {}).get("basis"):
        parts.append(_expectation(record))
    parts.extend(_finding(finding) for finding in record.get("findings", ()))
    if record.get("verdict") == "slow" and not named(record):
        parts.append(
            Text("\nNo known cause fits. Not a guess: look at what was not visible.", "bold")
        )
    budget = record.get("budget_ms_per_token")
    if budget:
        shares = ", ".join(f"{cause} {ms:.2f}" for cause, ms in budget.items())
        parts.append(Text(f"\nLost per token (ms): {shares}"))
    gpus = [plain(gpu_line(entry)) for entry in record.get("gpu", ())]
    if gpus:
        parts.append(Text("\n" + "\n".join(gpus), "dim"))
    if record.get("cleared"):
        parts.append(Text(f"Ruled out: {', '.join(record['cleared'])}", "dim"))
    parts.extend(
        Text(f"Not visible: {hidden['fact']} ({plain(hidden['how_to_enable'])})", "dim")
        for hidden in record.get("not_visible", ())
    )
    return Group(*parts)


def named(record: Record) -> list[Mapping[str, Any]]:
    """Return the findings that explain a slow request, without the informational ones."""
    return [f for f in record.get("findings", ()) if not f.get("informational")]


def plain(text: str) -> str:
    """Strip control characters, so that nothing foreign can steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def seconds(milliseconds: float) -> str:
    """Return a duration as people say it."""
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds:.0f} ms"


def number(value: float) -> str:
    """Return a number with three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _numbers(record: Record) -> list[str]:
    tokens, timing, rate = (record.get(k, {}) for k in ("tokens", "timing", "rate"))
    parts = []
    if record.get("status", 200) != 200:
        parts.append(f"{record.get('status')} {record.get('ended')}")
    if timing.get("queue_ms", 0) >= 100:
        parts.append(f"queue {seconds(timing['queue_ms'])}")
    if timing.get("load_ms", 0) >= 1000:
        parts.append(f"load {seconds(timing['load_ms'])}")
    if "prompt" in tokens and "prefill_ms" in timing:
        cached = f" ({tokens['cached']} cached)" if tokens.get("cached") else ""
        parts.append(f"prefill {tokens['prompt']}{cached} {seconds(timing['prefill_ms'])}")
    if "decode_tps" in rate:
        parts.append(f"decode {tokens['completion']} at {rate['decode_tps']:.1f}/s{_band(record)}")
    elif "total_ms" in timing:
        parts.append(seconds(timing["total_ms"]))
    return parts


def _band(record: Record) -> str:
    expected = record.get("expected", {})
    if "decode_low_tps" not in expected:
        return ""
    return f" (expect {expected['decode_low_tps']:.0f}-{expected['decode_high_tps']:.0f})"


def _clock(record: Record) -> str:
    return datetime.fromisoformat(str(record["ts"])).astimezone().strftime("%H:%M:%S")


def _head(record: Record) -> Text:
    verdict = str(record.get("verdict", "no verdict"))
    word = f"{verdict}, {record['phase']}" if record.get("phase") else verdict
    text = Text()
    text.append(word.upper(), VERDICT_STYLES.get(verdict, ""))
    if record.get("reason"):
        text.append(f" ({plain(str(record['reason']))})")
    upstream = record.get("upstream", {})
    where = f"{upstream.get('kind', '?')} at {upstream.get('url', '?')}"
    text.append(f"\n{plain(str(record.get('model') or '?'))} on {plain(where)}\n")
    text.append(f"{record['ts']}  {plain(str(record['path']))}  {record['id']}", "dim")
    return text


def _times(record: Record) -> Table:
    timing, tokens, rate = (record.get(k, {}) for k in ("timing", "tokens", "rate"))
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    cached = f", {tokens['cached']} cached" if "cached" in tokens else ""
    prompt = f"{tokens.get('prompt', '?')} tokens{cached}"
    answer = f"{tokens.get('completion', '?')} tokens"
    rows = (
        ("queue", "queue_ms", ""),
        ("load", "load_ms", ""),
        ("prefill", "prefill_ms", f"{prompt}{_per_second(rate.get('prefill_tps'))}"),
        ("decode", "decode_ms", f"{answer}{_per_second(rate.get('decode_tps'))}{_band(record)}"),
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


def _per_second(rate: float | None) -> str:
    return "" if rate is None else f" at {rate:.1f}/s"


def _expectation(record: Record) -> Text:
    expected = record["expected"]
    text = Text("\nExpected: ", "bold")
    text.append(plain(str(expected["basis"])), "not bold")
    for reason in expected.get("because", ()):
        text.append(f"\n  {plain(str(reason))}", "dim not bold")
    return text


def _finding(finding: Mapping[str, Any]) -> Text:
    text = Text(f"\n{finding['cause']}", "bold")
    said = (
        "for your information"
        if finding.get("informational")
        else (f"confidence {finding['confidence']:.2f}, lost {seconds(finding['lost_ms'])}")
    )
    text.append(f"  {said}\n", "not bold")
    text.append(f"  {plain(finding['summary'])}\n", "not bold")
    for e in finding.get("evidence", ()):
        limit = f" (limit {e['limit']:g})" if "limit" in e else ""
        text.append(f"    {e['name']} = {e['value']:g} {e['unit']}{limit}\n", "dim not bold")
    text.append(f"  Remedy: {plain(finding['remedy'])}", "not bold")
    return text
