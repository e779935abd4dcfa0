"""Caches of work on the last case, which several detectors need: a minute has hundreds of samples.

They also cache work on facts that many requests share, as long as those are the same object.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
Subject = TypeVar("Subject")
T = TypeVar("T")

MAX_ANSWERS = 64
"""Most answers kept for one case; shared facts may be asked about with ever new arguments."""


def cached_for_last_case(work: Callable[[Subject], T]) -> Callable[[Subject], T]:
    """Return `work` with a cache of one answer, that for the last case; it must not be modified.

    Exceptions of `work` are not cached.
    """
    last: tuple[Subject, T] | None = None

    @wraps(work)
    def kept(case: Subject) -> T:
        nonlocal last
        cached = last
        if cached is None or cached[0] is not case:
            last = cached = (case, work(case))  # in one step: another thread may ask about another
        return cached[1]

    return kept


def cached_for_last_case_by_args(
    work: Callable[Concatenate[Subject, P], T],
) -> Callable[Concatenate[Subject, P], T]:
    """Return `work` with a cache of its answers for the last case, one for each further argument.

    Arguments are compared by identity: comparing samples by value would cost what is saved. They
    are kept with their answer, so that no other object gets the identity of one.
    """
    last: tuple[Subject | None, dict[tuple[object, ...], tuple[object, T]]] = (None, {})

    @wraps(work)
    def kept(case: Subject, /, *args: P.args, **named: P.kwargs) -> T:
        nonlocal last
        cached = last
        if cached[0] is not case:
            last = cached = (case, {})
        answers = cached[1]
        arguments: tuple[Any, ...] = (*args, *named.values()) if named else args
        key = (*map(id, arguments), *named)
        answer = answers.get(key)
        if answer is None:
            if len(answers) >= MAX_ANSWERS:
                answers.clear()
            answer = answers[key] = (arguments, work(case, *args, **named))
        return answer[1]

    return kept
