"""Runs scenarios and labelled case files, and collects what the diagnosis says of them."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from accuracy.score import Answer, answer
from simulator.scenarios import Split, build, draw, group_of
from simulator.simulate import Truth
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.outputs.case_file import parse_case

LABEL = ".label.json"
CHUNK = 25


def run_one(which: tuple[str, int]) -> Answer:
    """Simulate and diagnose one scenario."""
    name, number = which
    scenario, case = build(name, number)
    return answer(
        name,
        number,
        group_of(name),
        scenario.truth,
        diagnose(case),
        engine=scenario.world.engine.kind,
        blind=scenario.blind,
    )


def run_all(
    count: int, split: Split | None, *, on_done: Callable[[int], None] = lambda _: None
) -> list[Answer]:
    """Run `count` scenarios of a split on all cores; the order is always the same."""
    wanted = list(draw(count, split))
    answers: list[Answer] = []
    with ProcessPoolExecutor(max_workers=min(os.cpu_count() or 1, 8)) as pool:
        for one in pool.map(run_one, wanted, chunksize=CHUNK):
            answers.append(one)
            on_done(len(answers))
    return answers


def reports(folder: Path) -> Iterator[Answer]:
    """Yield the answers for labelled case files: `NAME.json` with `NAME.label.json` beside it.

    A label is `{"slow": true, "primary": [...], "allowed": [...], "split": "published"}`; an empty
    `primary` of a slow run means that nothing may be named.

    Raises:
        CaseError: a file is no case.
        OSError: a file cannot be read.
    """
    for path, label in labelled(folder):
        case = parse_case(path.read_bytes()).case
        truth = truth_of(label)
        yield answer(path.stem, 0, "report", truth, diagnose(case), engine=case.server.kind)


def labelled(folder: Path) -> Iterable[tuple[Path, dict[str, Any]]]:
    """Return the case files of a folder that have a label, with it."""
    found = sorted(folder.rglob(f"*{LABEL}")) if folder.is_dir() else []
    for path in found:
        case = path.with_name(path.name.removesuffix(LABEL) + ".json")
        yield case, json.loads(path.read_text(encoding="utf-8"))


def truth_of(label: dict[str, Any]) -> Truth:
    """Return the truth that a label states."""
    return Truth(
        slow=label["slow"],
        primary=frozenset(label.get("primary", ())),
        allowed=frozenset(label.get("allowed", ())),
    )
