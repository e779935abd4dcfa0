"""Read the options of a program from its command line, whatever the program's name is."""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath

INTERPRETER_OPTIONS_WITH_VALUE = frozenset({"-X", "-W"})


def arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """Return what follows the program: a Python interpreter's own options are not the program's."""
    if not argv or not PurePath(argv[0]).name.startswith("python"):
        return tuple(argv[1:])
    at = 1
    while at < len(argv) and argv[at].startswith("-"):
        if argv[at] in {"-m", "-c"}:
            return tuple(argv[at + 2 :])
        at += 2 if argv[at] in INTERPRETER_OPTIONS_WITH_VALUE else 1
    return tuple(argv[at + 1 :])


def options(
    argv: Sequence[str],
    valued: Mapping[str, str],
    bare: Mapping[str, tuple[str, str]],
    maybe_bare: Mapping[str, tuple[str, Collection[str]]] | None = None,
) -> dict[str, str]:
    """Return the named options in `argv`; the last of two wins, as in the programs themselves.

    `valued` maps each spelling to a name, `bare` to a name and the value that it stands for.
    `maybe_bare` maps spellings, here listed in `valued` too, to the value they have when the next
    argument is none of the values named.
    """
    found: dict[str, str] = {}
    words = iter(enumerate(arguments(argv)))
    rest = arguments(argv)
    for at, word in words:
        spelling, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if spelling in bare and not equals:
            name, value = bare[spelling]
            found[name] = value
        elif spelling in valued:
            following = rest[at + 1] if at + 1 < len(rest) else None
            alone, allowed = (maybe_bare or {}).get(spelling, (None, ()))
            if equals:
                found[valued[spelling]] = value
            elif alone is not None and following not in allowed:
                found[valued[spelling]] = alone
            elif following is not None:
                found[valued[spelling]] = following
                next(words, None)
    return found


def dashed(word: str) -> str:
    """Return an option in its dashed spelling, for programs that take underscores too."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def values(argv: Sequence[str], spellings: Collection[str]) -> list[str]:
    """Return every value of an option that may stand several times, in their order."""
    found: list[str] = []
    for word, after in pairwise([*arguments(argv), ""]):
        name, equals, value = word.partition("=")
        if word in spellings and after:
            found.append(after)
        elif equals and name in spellings:
            found.append(value)
    return found


def number(text: str | None) -> int | None:
    """Return a whole number, or None for anything else."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
