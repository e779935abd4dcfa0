"""What breaks in observing costs the request nothing."""

from collections import Counter


class Unharmed:
    """Gives for each place, by its name, what is to stand around it: `with unharmed["begin"]:`.

    Whatever breaks there is counted in `failures`, and goes no further.
    """

    __slots__ = ("_failures", "_guards")

    def __init__(self, failures: Counter[str]) -> None:
        self._failures = failures
        self._guards: dict[str, _Guard] = {}  # made once for each place, not for each request

    def __getitem__(self, place: str) -> "_Guard":
        """Return the guard of a place."""
        guard = self._guards.get(place)
        if guard is None:
            guard = self._guards[place] = _Guard(self._failures, place)
        return guard


class _Guard:
    __slots__ = ("_failures", "_place")

    def __init__(self, failures: Counter[str], place: str) -> None:
        self._failures = failures
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if error is None:
            return True
        if not isinstance(error, Exception):
            return False
        self._failures[self._place] += 1
        return True
