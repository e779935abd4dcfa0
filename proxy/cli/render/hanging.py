"""Text whose wrapped lines begin below its first word."""

from rich.table import Table
from rich.text import Text


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
