"""Runs a benchmark: the warm-up, then each run, with what is left to do on the screen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from slowtok.proxy.cli.bench.figures import BenchRun, run_of
from slowtok.proxy.cli.bench.protocol import Record
from slowtok.proxy.cli.demo.client import Client
from slowtok.proxy.cli.demo.shots import Shot

REFRESH_PER_S = 4  # a bar that turns faster takes CPU time from the engine
USUAL_DECODE_TPS, USUAL_PREFILL_TPS = 20.0, 200.0  # for the bar alone, until a run has told
NARROW = 60  # columns; below, the bar is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyPace:
    """Rates by which the time that is left is guessed, in tokens/s."""

    decode_tps: float = USUAL_DECODE_TPS
    prefill_tps: float = USUAL_PREFILL_TPS

    def seconds(self, shot: Shot) -> float:
        """Return how long a run should take; a token of a prompt has about four characters."""
        prompt = sum(len(m["content"]) for m in shot.body["messages"]) / 4
        return prompt / self.prefill_tps + shot.tokens / self.decode_tps


def pace_of(record: Record) -> ReplyPace:
    """Return the pace that a record shows."""
    rate = record.get("rate", {})
    return ReplyPace(
        decode_tps=rate.get("decode_tps") or USUAL_DECODE_TPS,
        prefill_tps=rate.get("prefill_tps") or USUAL_PREFILL_TPS,
    )


async def measure(
    client: Client, shots: Sequence[Shot], pace: ReplyPace, screen: Console
) -> list[BenchRun]:
    """Send one run after the other, and return them with what slowtok said.

    Raises:
        DemoError: one was not answered, or no record of it came.
    """
    lengths_s = [pace.seconds(shot) for shot in shots]
    runs = []
    with progress_bar(screen) as bar:
        task = bar.add_task("", total=sum(lengths_s))
        done_s = 0.0
        for shot, length_s in zip(shots, lengths_s, strict=True):
            bar.update(task, description=shot.label)
            on_token = _advance(bar, task, done_s, length_s, shot.tokens)
            outcome = await client.send(shot, on_token)
            runs.append(run_of(shot.label, outcome.record))
            done_s += length_s
            bar.update(task, completed=done_s)
    return runs


def progress_bar(screen: Console) -> Progress:
    """Return the bar; nothing of it is seen where there is no terminal."""
    wide = (BarColumn(), TaskProgressColumn()) if screen.width >= NARROW else ()
    return Progress(
        TextColumn("{task.description:<10}"),
        *wide,
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        refresh_per_second=REFRESH_PER_S,
        disable=not screen.is_terminal,
    )


def _advance(
    bar: Progress, task: TaskID, done_s: float, length_s: float, tokens: int
) -> Callable[[int], None]:
    def on_token(events: int) -> None:
        bar.update(task, completed=done_s + length_s * min(events / tokens, 1.0))

    return on_token
