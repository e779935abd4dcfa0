"""The demo on the screen while it goes on: what came out so far, one line for each step."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.status import Status

from slowtok.proxy.cli.demo import report
from slowtok.proxy.cli.demo.client import Client
from slowtok.proxy.cli.demo.shots import Outcome, Shot

REFRESH_PER_S = 5  # a spinner that turns faster takes CPU time from the engine


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
        self.console.print(report.progress_line(outcome, mark))
