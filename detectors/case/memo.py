"""Work on a case that several detectors ask for, done once: a minute has hundreds of samples.

So is work on facts that many requests share, as long as they are the same objects.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
Subject = TypeVar("Subject")
T = TypeVar("T")

MAX_ANSWERS = 64
"""Kept for one case; facts that stay the same may be asked about with ever new ones."""


def once(work: Callable[[Subject], T]) -> Callable[[Subject], T]:
    """Return `work` with its answer for the last case kept; nobody may change it.

    What `work` raises is raised anew each time.
    """
    last: tuple[Subject, T] | None = None

    @wraps(work)
    def kept(case: Subject) -> T:
        nonlocal last
        mine = last
        if mine is None or mine[0] is not case:
            last = mine = (case, work(case))  # in one step: another thread may ask about another
        return mine[1]

    return kept


def once_each(work: Callable[Concatenate[Subject, P], T]) -> Callable[Concatenate[Subject, P], T]:
    """Return `work` with its answers for the last case kept, one for each further argument.

    Taken for the same are only arguments that are the same objects: comparing samples would cost
    what is saved.
    """
    last: tuple[Subject | None, dict[tuple[object, ...], tuple[object, T]]] = (None, {})

    @wraps(work)
    def kept(case: Subject, /, *args: P.args, **named: P.kwargs) -> T:
        nonlocal last
        mine = last
        if mine[0] is not case:
            last = mine = (case, {})
        answers = mine[1]
        given: tuple[Any, ...] = (*args, *named.values()) if named else args
        key = (*map(id, given), *named)
        found = answers.get(key)
        if found is None:
            if len(answers) >= MAX_ANSWERS:
                answers.clear()
            found = answers[key] = (given, work(case, *args, **named))  # `given` keeps ids valid
        return found[1]

    return kept
