"""The reference of all causes, docs/causes.md, and their table in README.md, from the detectors.

`python -m slowtok.detectors.docs` in the repository's root writes both.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from slowtok.detectors.case.finding import Detector
from slowtok.detectors.diagnosis.catalog import CATALOG, cause_of

SECTIONS = ("Signal:", "Not to be confused with:", "Remedy:", "Sources:")

HEAD = """\
# Causes

This page describes every cause that slowtok can name for a slow request. A cause has the same name
in response headers, log, metrics and here. `make docs` generates the page from the docstrings of
the detectors: change them there.
"""

PLACES: Mapping[str, str] = {
    "client": "the client and the way to it",
    "prompt": "the prompt and its cache",
    "server": "the engine",
    "memory": "memory",
    "gpu": "the GPU",
    "host": "the machine",
}
"""The row of README's table for each folder of causes."""


def render(catalog: Iterable[Detector]) -> str:
    """Return the reference as Markdown: one heading for each cause, in the catalogue's order."""
    return "\n".join([HEAD, *(_section(detector) for detector in catalog)])


def with_causes(readme: str, catalog: Iterable[Detector]) -> str:
    """Return the README with the causes of each place, in the catalogue's order."""
    named: dict[str, list[str]] = {place: [] for place in PLACES.values()}
    for detector in catalog:
        named[PLACES[detector.__name__.split(".")[-2]]].append(f"`{cause_of(detector)}`")
    for place, causes in named.items():
        row = f"| {place} | {', '.join(causes)} |"
        readme = re.sub(rf"^\| {place} \| `.*$", row, readme, flags=re.MULTILINE)
    return readme


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
    """Write docs/causes.md and the table of causes in README.md."""
    Path("docs", "causes.md").write_text(render(CATALOG), encoding="utf-8")
    readme = Path("README.md")
    readme.write_text(with_causes(readme.read_text(encoding="utf-8"), CATALOG), encoding="utf-8")


if __name__ == "__main__":
    main()
