"""The demo on the screen: a line for each step, a table at its end, the worst request in full."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.status import Status
from rich.table import Table
from rich.text import Text

from slowtok.proxy.cli.demo.client import Client
from slowtok.proxy.cli.demo.shots import NORMAL, UNEXPLAINED, Outcome, Shot
from slowtok.proxy.cli.render.console import VERDICT_STYLES, Record, named, plain
from slowtok.proxy.cli.render.explanation import explanation
from slowtok.proxy.cli.render.units import counted, seconds

MIN_CAUSES = 2
CONTENTION = "host-contention"
NOT_CONVINCING = (
    "Too few requests came out as intended: try again when other programs leave the CPU idle."
)

BUSY_RATIO = 0.25  # of the cores; heuristic

REFRESH_PER_S = 5  # a spinner that turns faster takes CPU time from the engine


def notice_of_others(others_cores: float, cores: int) -> str | None:
    """Return the notice that other programs will slow the demo; None where they do not."""
    if others_cores < BUSY_RATIO * cores:
        return None
    return (
        f"Other programs use {others_cores:.1f} of {counted(cores, 'core')}: the demo will take "
        "longer, and requests that should be healthy may be slow."
    )


def convinces(outcomes: Sequence[Outcome]) -> bool:
    """Return True if the demo showed its point.

    That is at least one healthy request that is normal, and two different causes, each one named
    where it was provoked.
    """
    right = [o for o in outcomes if o.as_expected]
    causes = {o.word for o in right} - {NORMAL}
    healthy = [o for o in right if o.word == NORMAL and o.shot.expected == (NORMAL,)]
    return bool(healthy) and len(causes) >= MIN_CAUSES


def surprises(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a line for each request whose outcome differs from what was done to it."""
    return [
        f"{o.shot.label}: expected {' or '.join(o.shot.expected)}, got {o.word}{_reason(o.record)}"
        for o in outcomes
        if not o.as_expected
    ]


def worst(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the request that lost most time to a cause that was provoked."""
    slow = [o for o in outcomes if o.as_expected and o.word != NORMAL]
    return max(slow, key=lambda o: _lost_ms(o.record), default=None)


def progress_line(outcome: Outcome, mark: str) -> Text:
    """Return the line of one request that has just ended."""
    record, verdict = outcome.record, str(outcome.record.get("verdict", "unknown"))
    rate = record.get("rate", {}).get("decode_tps")
    how = "stream" if outcome.shot.stream else "whole"
    line = Text("  ")
    line.append(f"{mark} ", "green" if outcome.as_expected else "yellow")
    line.append(f"{outcome.shot.label:<14}")
    line.append(f"{how:<6} {_rate(rate):>4} tok/s  ", "dim")
    line.append(verdict, VERDICT_STYLES.get(verdict, ""))
    for finding in named(record)[:1]:
        line.append(f": {finding['cause']}", "bold")
        line.append(f", lost {seconds(finding['lost_ms'])}")
    if outcome.word == UNEXPLAINED:
        line.append(f": {UNEXPLAINED}")
    return line


def table(outcomes: Sequence[Outcome]) -> Table:
    """Return one row for each request; it fits into 80 columns."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    made.add_column("request", no_wrap=True)
    made.add_column("prefill\ntokens", justify="right", no_wrap=True)
    made.add_column("\ntime", justify="right", no_wrap=True)
    made.add_column("decode\ntok/s", justify="right", no_wrap=True)
    made.add_column("expected\ntok/s", justify="right", no_wrap=True)
    made.add_column("verdict", no_wrap=True)
    made.add_column("cause", no_wrap=True)
    for outcome in outcomes:
        made.add_row(*row(outcome))
    return made


def row(outcome: Outcome) -> tuple[RenderableType, ...]:
    """Return the cells of one request: label, prefill, decode, expected, verdict, cause."""
    record = outcome.record
    tokens, timing, rate = (record.get(k, {}) for k in ("tokens", "timing", "rate"))
    verdict = str(record.get("verdict", "unknown"))
    return (
        plain(outcome.shot.label),
        _processed(tokens),
        seconds(timing["prefill_ms"]) if "prefill_ms" in timing else "?",
        _rate(rate.get("decode_tps")),
        _band(record.get("expected", {})),
        Text(verdict, VERDICT_STYLES.get(verdict, "")),
        _cause(outcome),
    )


def ending(outcomes: Sequence[Outcome]) -> RenderableType:
    """Return everything that follows the last request: table, surprises, the worst in full."""
    parts: list[RenderableType] = [Text(), table(outcomes), Text()]
    met = [o for o in outcomes if o.word == CONTENTION and not o.as_expected]
    others = [o for o in outcomes if o not in met]
    parts.extend(Text(f"Not as expected (?): {line}", "yellow") for line in surprises(others))
    if met:
        said = f"{counted(len(met), 'request')} (?) met other programs on the cores, "
        parts.append(Text(f"{said}and slowtok noticed it: {CONTENTION}.\n", "yellow"))
    found = worst(outcomes)
    if found is not None:
        parts += [Text(f"The slowest in full: {found.shot.label}\n", "bold")]
        parts += [explanation(found.record), Text()]
    return Group(*parts)


def next_steps(url: str | None, explain: str | None, option: str = "") -> Text:
    """Return what to do next.

    `url` is where the proxy stays up, `explain` a command that works, and `option` what each
    command needs to find this proxy.
    """
    lines = []
    if url is not None:
        lines.append(f"Still running: point a client at {url}/v1; Ctrl-C ends it.")
        lines.append(f"Its live page: {url}/slowtok/")
        lines.append(f"From another terminal: slowtok top{option}")
        lines.append("or, in the same way, tail, report, status or doctor.")
    if explain is not None:
        lines.append(f"One request in full: {explain}")
    if url is None:
        lines.append("To keep it running and try your own client: slowtok demo --serve")
    lines.append("With your own engine: slowtok")
    lines.append("It finds llama-server, Ollama and vLLM on their usual ports and listens on")
    lines.append("http://127.0.0.1:4141/v1: point your client's base URL there.")
    return Text("\n".join(lines))


def to_json(outcomes: Sequence[Outcome], elapsed_s: float) -> dict[str, Any]:
    """Return the demo's outcome as one JSON object."""
    return {
        "event": "demo",
        "schema": 1,
        "convinces": convinces(outcomes),
        "elapsed_s": round(elapsed_s, 1),
        "requests": [
            {
                "label": o.shot.label,
                "expected": list(o.shot.expected),
                "outcome": o.word,
                "as_expected": o.as_expected,
                "record": o.record,
            }
            for o in outcomes
        ],
    }


def _cause(outcome: Outcome) -> Text:
    causes = named(outcome.record)
    if not causes:
        return Text(UNEXPLAINED if outcome.word == UNEXPLAINED else "")
    first = causes[0]
    cell = Text(str(first["cause"]), "bold")
    cell.append(f"\n{first['confidence']:.0%}, lost {seconds(first['lost_ms'])}", "not bold dim")
    return cell


def _reason(record: Record) -> str:
    return f" ({plain(str(record['reason']))})" if record.get("reason") else ""


def _lost_ms(record: Record) -> float:
    return sum(float(f["lost_ms"]) for f in named(record))


def _processed(tokens: Record) -> str:
    prompt = tokens.get("prompt")
    return "?" if prompt is None else f"{prompt - tokens.get('cached', 0):,}"


def _rate(tokens_per_s: float | None) -> str:
    return "?" if tokens_per_s is None else f"{tokens_per_s:.{0 if tokens_per_s >= 10 else 1}f}"


def _band(expected: Record) -> str:
    low, high = expected.get("decode_low_tps"), expected.get("decode_high_tps")
    return "?" if low is None or high is None else f"{_rate(low)}-{_rate(high)}"


@dataclass(kw_only=True)
class Show:
    """Where the demo is shown, and what came out so far."""

    console: Console
    model: Path
    model_name: str
    outcomes: list[Outcome] = field(default_factory=list)
    began_at_s: float = field(default_factory=time.monotonic)

    @property
    def tick(self) -> str:
        """The mark of something done, where the terminal can show it."""
        return "✓" if self.console.encoding.lower().startswith("utf") else "+"

    def waiting(self, text: str) -> Status:
        """Show that something is on its way, where there is a terminal."""
        return self.console.status(text, refresh_per_second=REFRESH_PER_S)

    def say(self, text: str) -> None:
        """Tell of a step that is done."""
        self.console.print(f"[green]{self.tick}[/] {text}", soft_wrap=True)

    def scene(self, text: str) -> None:
        """Tell what comes next."""
        self.console.print(f"\n[bold]{text}[/]")

    async def fire(self, client: Client, shot: Shot) -> Outcome:
        """Send one request, show it on its way, and keep what came out."""
        with self.waiting(shot.label) as status:

            def count(events: int) -> None:
                if shot.stream:
                    so_far = min(events, shot.tokens)
                    status.update(f"{shot.label}: {so_far} of {shot.tokens} tokens")

            outcome = await client.send(shot, count)
        self.keep(outcome)
        return outcome

    def keep(self, outcome: Outcome) -> None:
        """Keep what came out, and show it."""
        self.outcomes.append(outcome)
        mark = self.tick if outcome.as_expected else "?"
        self.console.print(progress_line(outcome, mark))
