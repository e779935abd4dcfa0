"""The figures as Markdown, and their place in docs/accuracy.md between two markers."""

from collections.abc import Iterator, Sequence

from accuracy.score import NORMAL, Answer, Bin, Figures, Row

BEGIN, END = "<!-- figures: written by `make accuracy` -->", "<!-- end of figures -->"


def put(document: str, text: str) -> str:
    """Return the document with what stands between its markers replaced.

    Raises:
        ValueError: it has no markers.
    """
    head, _, rest = document.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise ValueError("no markers in docs/accuracy.md")
    return f"{head}{BEGIN}\n\n{text.strip()}\n\n{END}{tail}"


def render(title: str, found: Figures) -> str:
    """Return all figures of one set of runs."""
    parts = [f"## {title}", _summary(found)]
    if any(each.said for each in found.bins):
        parts += ["### Confidence", _calibration(found.bins)]
    for name, head, rows in (
        ("By engine", "engine", found.by_engine),
        ("By how much slower it made the request", "the phase took", found.by_size),
        ("By what could not be seen", "not seen", found.by_sight),
        ("By what was done", "scenario", found.by_scenario),
    ):
        if rows:
            parts += [f"### {name}", _rows(head, rows)]
    if found.confusion:
        parts += ["### What was said instead", _confusion(found)]
    return "\n\n".join(parts)


def misses(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield a line for each run that was judged wrongly."""
    for one in answers:
        if one.is_miss:
            truth = ", ".join(sorted(one.truth.primary)) or ("slow" if one.truth.slow else NORMAL)
            said = ", ".join(f"{c} {p:.2f}" for c, p in one.causes) or one.said
            blind = f" (not seen: {', '.join(one.blind)})" if one.blind else ""
            yield (
                f"{one.name}/{one.number} on {one.engine}{blind}: truth {truth}, "
                f"{1 + one.truth.cost:.2f} times; said {said}; {one.summary}"
            )


def _summary(found: Figures) -> str:
    rows = [
        ("runs", f"{found.runs}"),
        ("slow for a known reason", f"{found.slow}"),
        ("right first (top-1)", _percent(found.top1)),
        ("right in the first two (top-2)", _percent(found.top2)),
        ("missed: called normal, or not judged", _of(found.missed, found.slow)),
        ("called slow, and no cause named", _of(found.nameless, found.slow)),
        ("runs that lost nothing", f"{found.healthy}"),
        ("... of these with a cause named (false alarms)", _of(found.false_alarms, found.healthy)),
        ("... of these called slow at all", _of(found.called_slow, found.healthy)),
        ("slow for reasons that cannot be seen", f"{found.unexplained}"),
        ("... of these with a wrong cause named", _of(found.unexplained_named, found.unexplained)),
        ("... of these not called slow", _of(found.unexplained_missed, found.unexplained)),
        ("wrong with confidence of 0.8 or more", f"{found.confidently_wrong}"),
        ("lost neither nothing nor much: any verdict is right", f"{found.undecided}"),
        ("... of these with a wrong cause named", _of(found.undecided_named, found.undecided)),
        ("runs in which a detector failed", f"{found.failed}"),
    ]
    return _table(("", "figure"), rows)


def _calibration(bins: Sequence[Bin]) -> str:
    rows = [
        (f"{b.low:.1f} to {min(b.high, 1.0):.1f}", f"{b.said}", _percent(_share(b.true, b.said)))
        for b in bins
    ]
    return _table(("said with confidence", "findings", "true"), rows)


def _rows(head: str, rows: Sequence[Row]) -> str:
    lines = [
        (
            row.name,
            f"{row.runs}",
            _percent(row.first / row.runs),
            _percent(row.two / row.runs),
            _percent(row.unexplained / row.runs),
            _percent(row.missed / row.runs),
            f"{row.confidently_wrong}",
        )
        for row in rows
    ]
    columns = ("slow runs", "top-1", "top-2", "no name", "missed", "confidently wrong")
    return _table((head, *columns), lines)


def _confusion(found: Figures) -> str:
    wrong = [(true, said, f"{n}") for true, said, n in found.confusion if true != said]
    return _table(("truth", "said", "runs"), wrong)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _of(part: int, whole: int) -> str:
    return f"{part} ({_percent(_share(part, whole))})"


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
