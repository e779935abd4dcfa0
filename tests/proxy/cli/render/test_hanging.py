"""Wrapped text stays beside its mark, and nouns agree with their number."""

import pytest
from rich.console import Console

from slowtok.proxy.cli.render.console import hanging
from slowtok.proxy.cli.render.units import counted


def test_wrapped_lines_begin_below_the_first_word() -> None:
    console = Console(width=20, color_system=None)
    with console.capture() as captured:
        console.print(hanging("  Remedy:", "do this and then that"))

    lines = [line.rstrip() for line in captured.get().splitlines()]
    assert lines == ["  Remedy: do this", "          and then", "          that"]


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 requests"), (1, "1 request"), (1234, "1,234 requests")]
)
def test_counted(number: int, said: str) -> None:
    assert counted(number, "request") == said
