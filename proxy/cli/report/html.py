"""A report as one HTML file: nothing is loaded from elsewhere, nothing is run. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from html import escape as escape_markup
from typing import Any

from slowtok.proxy.cli.render.console import plain
from slowtok.proxy.cli.render.units import clock, counted, duration, percent
from slowtok.proxy.cli.report.text import NO_REQUEST, chosen, trend_lines, unread

Report = Mapping[str, Any]
Cell = str | int | float | None

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What a browser may load for this page: nothing but the style inside it."""

MAX_BARS = 24 * 7
LABELS, LABEL_W = 8, 75
CHART_W, CHART_H = 840, 120

STYLE = """
:root { color-scheme: light dark; --bg: #fff; --fg: #1c2024; --soft: #5d666f; --line: #d5dade;
  --card: #f4f6f8; --good: #17703c; --bad: #b3261e; --odd: #8a5a00; --bar: #9db4c8; }
@media (prefers-color-scheme: dark) {
  :root { --bg: #14171a; --fg: #e6e9ec; --soft: #9aa4ad; --line: #343b42; --card: #1d2226;
    --good: #6fce93; --bad: #ff8a80; --odd: #f0bf5c; --bar: #4b6478; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--fg);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.35rem; }
h2 { font-size: 1.05rem; margin: 1.75rem 0 .5rem; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .6rem;
  margin: 1rem 0; }
.tile { background: var(--card); border-radius: .5rem; padding: .6rem .8rem; }
dt { color: var(--soft); font-size: .85rem; }
dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.good dd { color: var(--good); } .bad dd { color: var(--bad); } .odd dd { color: var(--odd); }
.first { border-left: .3rem solid var(--bad); background: var(--card); padding: .2rem 1rem;
  border-radius: .3rem; }
.first h2 { margin-top: .6rem; }
.first.good { border-color: var(--good); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
thead th { color: var(--soft); font-weight: normal; font-size: .85rem; }
.n { white-space: nowrap; }
.first-of-two th, .first-of-two td { border-bottom: 0; padding-bottom: 0; }
.more td { color: var(--soft); padding-top: 0; }
.share { display: inline-block; width: 5rem; height: .6rem; background: var(--line);
  border-radius: .3rem; overflow: hidden; }
.share span { display: block; height: 100%; background: var(--bad); }
code { overflow-wrap: anywhere; }
svg { width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 11px; }
.all { fill: var(--bar); } .slow { fill: var(--bad); }
@media print { :root { --bg: #fff; --fg: #000; } main { max-width: none; padding: 0; }
  section, tr { break-inside: avoid; } }
"""


def escape(text: str) -> str:
    """Return a text as neither a browser nor, where the file is printed, a terminal obeys it."""
    return escape_markup(plain(text))


def page(report: Report) -> str:
    """Return the whole file. Every text that came from outside is escaped."""
    title = f"slowtok report, {clock(report['since'])} to {clock(report['until'])}"
    parts = "\n".join(part for part in _parts(report) if part)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n{parts}\n</main>\n</body>\n</html>"
    )


def _parts(report: Report) -> Iterator[str]:
    if only := chosen(report):
        yield f"<p>{escape(only)}</p>"
    if not report["requests"]:
        yield f"<p>{NO_REQUEST}</p>"
        yield _notes(report)
        return
    yield _first(report)
    yield _tiles(report)
    yield _section("Time lost, by cause", _causes(report["causes"]))
    yield _section("Time spent, by phase", _spent(report["spent_ms"]))
    yield _section("Runs, by time that a cure would win", _runs(report["runs"]))
    yield _section("Requests by hour", _chart(report["hours"]))
    yield _section("Models, by time lost", _groups("model", report["models"]))
    yield _section("Clients, by time lost", _groups("client", report["clients"]))
    yield _section("Busiest hours", _hours(report["busiest_hours"]))
    yield _cache(report["prompt_cache"])
    if lines := list(trend_lines(report)):
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        since = escape(clock(report["before"]["since"]))
        yield f"<h2>Against the time before (from {since})</h2><ul>{items}</ul>"
    yield _notes(report)


def _first(report: Report) -> str:
    cause = report.get("fix_first")
    if cause is None:
        return '<section class="first good"><p>No time was lost to a known cause.</p></section>'
    return (
        f'<section class="first"><h2>Fix first: {escape(cause["cause"])}</h2>'
        f"<p>It cost {duration(cause['lost_ms'])} in {counted(cause['requests'], 'request')}. "
        f"{escape(cause.get('summary', ''))}</p>"
        f"<p><strong>{escape(cause['remedy'])}</strong></p>"
        f"<p>Its worst request: <code>slowtok explain {escape(cause['worst_id'])}</code></p>"
        "</section>"
    )


def _tiles(report: Report) -> str:
    verdicts = report["verdicts"]
    lost = duration(report["lost_ms"])
    share = f" ({percent(report['lost_ratio'])})" if "lost_ratio" in report else ""
    tiles = [
        ("requests", f"{report['requests']:,}", ""),
        ("normal", f"{verdicts['normal']:,}", "good"),
        ("slow", f"{verdicts['slow']:,}", "bad"),
        ("unknown", f"{verdicts['unknown']:,}", "odd"),
        ("time lost", f"{lost}{share}", "bad" if report["lost_ms"] else ""),
    ]
    if "decode_tps" in report:
        tiles.append(("tokens/s while decoding", f"{report['decode_tps']:.1f}", ""))
    if report["failed"]:
        failed = ", ".join(f"{count:,} {name}" for name, count in report["failed"].items())
        tiles.append(("failed", failed, "bad"))
    shown = "".join(
        f'<div class="tile {kind}"><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>'
        for name, value, kind in tiles
    )
    return f"<dl>{shown}</dl>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def _causes(causes: Sequence[Report]) -> str:
    return _table(("cause", "lost", "share", "requests"), [_cause(cause) for cause in causes])


def _cause(cause: Report) -> str:
    share, remedy = cause.get("share", 0.0), cause.get("remedy")
    below = f'<tr class="more"><td colspan="4">{escape(remedy)}</td></tr>' if remedy else ""
    return (
        f"<tr{' class=first-of-two' if remedy else ''}>"
        f'<th scope="row">{escape(cause["cause"])}</th>'
        f'<td class="n">{duration(cause["lost_ms"])}</td>'
        f'<td class="n"><span class="share"><span style="width:{100 * share:.1f}%"></span></span>'
        f' {percent(share)}</td><td class="n">{cause["requests"]:,}</td></tr>{below}'
    )


def _spent(spent_ms: Report) -> str:
    whole_ms = sum(spent_ms.values())
    ranked = sorted(spent_ms.items(), key=lambda item: -item[1])
    rows = [_row(phase, duration(ms), percent(ms / whole_ms)) for phase, ms in ranked if ms]
    return _table(("phase", "spent", "share"), rows)


def _runs(runs: Sequence[Report]) -> str:
    rows = [
        _row(
            run.get("name") or run["id"],
            clock(run["started"]),
            run["requests"],
            duration(run["wall_ms"]),
            duration(run["fix_first"]["wall_then_ms"]) if "fix_first" in run else "",
            run.get("fix_first", {}).get("cause", ""),
        )
        for run in runs
    ]
    return _table(("run", "started", "requests", "took", "would take", "fix first"), rows)


def _groups(kind: str, groups: Sequence[Report]) -> str:
    rows = [
        _row(
            m[kind],
            m["requests"],
            m["slow"],
            duration(m["total_ms"]),
            duration(m["lost_ms"]),
            f"{m['decode_tps']:.1f}" if "decode_tps" in m else "",
            m.get("first_cause", ""),
        )
        for m in groups
    ]
    return _table((kind, "requests", "slow", "spent", "lost", "decode/s", "first cause"), rows)


def _hours(hours: Sequence[Report]) -> str:
    rows = [_row(clock(h["hour"]), h["requests"], h["slow"], duration(h["lost_ms"])) for h in hours]
    return _table(("hour", "requests", "slow", "lost"), rows)


def _table(names: Sequence[str], rows: Sequence[str]) -> str:
    if not rows:
        return ""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    return (
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(name: str, *cells: Cell) -> str:
    shown = (f"{cell:,}" if isinstance(cell, int) else escape(str(cell)) for cell in cells)
    return (
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f'<td class="n">{cell}</td>' for cell in shown)
        + "</tr>"
    )


def _chart(hours: Sequence[Report]) -> str:
    """Return the requests of each hour as bars, the slow ones at their foot."""
    shown = hours[-MAX_BARS:]
    if len(shown) < 2:
        return ""
    times = [datetime.fromisoformat(h["hour"]) for h in shown]
    slots = round((times[-1] - times[0]).total_seconds() / 3600) + 1
    width, most = CHART_W / slots, max(h["requests"] for h in shown)
    bars = "".join(
        _bar(h, round((at - times[0]).total_seconds() / 3600) * width, width, most)
        for h, at in zip(shown, times, strict=True)
    )
    said = f"{counted(len(shown), 'hour')} with requests, {most:,} in the busiest"
    every = max(slots // LABELS, 1)
    labels = "".join(
        f'<text x="{x:.1f}" y="{CHART_H + 16}">{at:%d %b %H:%M}</text>'
        for at in times[::every]
        if (x := round((at - times[0]).total_seconds() / 3600) * width) < CHART_W - LABEL_W
    )
    return (
        f'<svg viewBox="0 0 {CHART_W} {CHART_H + 22}" role="img" aria-label="{escape(said)}">'
        f"{bars}{labels}</svg><p>{escape(said)}; the red part was slow.</p>"
    )


def _bar(hour: Report, x: float, width: float, most: int) -> str:
    height, slow = (CHART_H * hour[name] / most for name in ("requests", "slow"))
    said = f"{clock(hour['hour'])}: {counted(hour['requests'], 'request')}, {hour['slow']:,} slow"
    size = f'x="{x:.1f}" width="{max(width - 1, 0.5):.1f}"'
    return (
        f"<g><title>{escape(said)}</title>"
        f'<rect class="all" {size} y="{CHART_H - height:.1f}" height="{height:.1f}"/>'
        f'<rect class="slow" {size} y="{CHART_H - slow:.1f}" height="{slow:.1f}"/></g>'
    )


def _cache(cache: Report) -> str:
    if not cache["prompt_tokens"]:
        return ""
    again = ""
    if cache["computed_again_tokens"]:
        again = (
            f" {cache['computed_again_tokens']:,} were computed again although they were known, "
            f"which cost {duration(cache['lost_ms'])}."
        )
    return (
        f"<section><h2>Prompt cache</h2><p>{cache['cached_tokens']:,} of "
        f"{cache['prompt_tokens']:,} prompt tokens ({percent(cache.get('cached_ratio'))}) came "
        f"from it.{again}</p></section>"
    )


def _notes(report: Report) -> str:
    bad = report["bad_lines"]
    return f"<p>{unread(bad)}</p>" if bad else ""
