"""The reference of all causes, docs/causes.md, from the detectors' docstrings.

`python -m slowtok.detectors.docs` in the repository's root writes it.
"""

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

from slowtok.detectors.case.finding import Detector
from slowtok.detectors.diagnosis.catalog import CATALOG, cause_of

SECTIONS = ("Signal:", "Not to be confused with:", "Remedy:", "Sources:")

HEAD = """\
# Causes

What slowtok can name as the reason for a slow request. The name of a cause is the same in response
headers, log, metrics and here. Generated from the detectors by `make docs`: change it there.
"""


def render(catalog: Iterable[Detector]) -> str:
    """Return the reference as Markdown: one heading for each cause, in the catalogue's order."""
    return "\n".join([HEAD, *(_section(detector) for detector in catalog)])


def _section(detector: Detector) -> str:
    text = "\n".join(_markdown(inspect.getdoc(detector) or ""))
    return f"## {cause_of(detector)}\n\n*{detector.TITLE}.* {text}\n"


def _markdown(docstring: str) -> Iterator[str]:
    for line in docstring.splitlines():
        if line in SECTIONS:
            yield f"### {line.removesuffix(':')}"
            yield ""
        else:
            yield line


def main() -> None:
    """Write docs/causes.md."""
    Path("docs", "causes.md").write_text(render(CATALOG), encoding="utf-8")


if __name__ == "__main__":
    main()
