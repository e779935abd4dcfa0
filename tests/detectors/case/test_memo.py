"""Work on a case is done once, and never answered for another case."""

from dataclasses import replace

import pytest

from fakes.cases import case
from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.finding import Missing
from slowtok.detectors.case.memo import (
    MAX_ANSWERS,
    cached_for_last_case,
    cached_for_last_case_by_args,
)


def test_work_is_done_once_for_each_case_and_argument() -> None:
    done: list[tuple[int, str, int]] = []

    @cached_for_last_case_by_args
    def count(of: Case, phase: Phase, *, least: int = 0) -> int:
        done.append((id(of), phase, least))
        return len(done)

    first = case()
    second = replace(first)
    asked = [(first, "decode"), (first, "prefill"), (first, "decode"), (second, "decode")]
    answers = [count(of, phase) for of, phase in asked]  # type: ignore[arg-type]

    assert answers == [1, 2, 1, 3]
    assert count(second, "decode", least=1) == 4
    assert count(first, "decode") == 5  # only the last case is kept


def test_the_same_value_by_another_name_is_another_question() -> None:
    @cached_for_last_case_by_args
    def span(_of: Case, *, least: int = 0, most: int = 9) -> tuple[int, int]:
        return least, most

    of = case()

    assert (span(of, least=5), span(of, most=5)) == ((5, 9), (0, 5))


def test_work_on_a_case_alone_is_done_once_for_each_case() -> None:
    done: list[int] = []

    @cached_for_last_case
    def count(of: Case) -> int:
        done.append(id(of))
        return len(done)

    first, second = case(), case()

    assert [count(of) for of in (first, first, second, second, first)] == [1, 1, 2, 2, 3]


def test_what_is_missing_is_missing_each_time() -> None:
    @cached_for_last_case
    def fail(_case: Case) -> int:
        raise Missing("clocks")

    of = case()
    for _ in range(2):
        with pytest.raises(Missing):
            fail(of)


def test_answers_are_kept_for_a_bounded_number_of_arguments() -> None:
    alive: list[object] = [object() for _ in range(3 * MAX_ANSWERS)]
    asked: list[object] = []

    @cached_for_last_case_by_args
    def note(_of: Case, what: object) -> int:
        asked.append(what)
        return len(asked)

    of = case()
    for what in alive:
        note(of, what)
    newest, oldest = note(of, alive[-1]), note(of, alive[0])

    assert newest == len(alive)  # kept
    assert oldest == len(alive) + 1  # asked again


def test_work_that_asks_for_another_case_is_kept_for_its_own() -> None:
    other = case()

    @cached_for_last_case
    def which(of: Case) -> tuple[int, int]:
        return id(of), id(of) if of is other else which(other)[0]

    first = case()

    assert which(first) == (id(first), id(other))
    assert which(other) == (id(other), id(other))
