"""What breaks in observing costs the request nothing."""

from collections import Counter


class Unharmed:
    """Lets whatever breaks in observing cost the request nothing; it is counted."""

    __slots__ = ("_failures", "_place")

    def __init__(self, failures: Counter[str], place: str) -> None:
        self._failures = failures
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._failures[self._place] += 1
        return True
