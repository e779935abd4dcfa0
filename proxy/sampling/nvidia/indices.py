"""Numbers for GPUs that stay the same, wherever NVML lists them."""


class Indices:
    """By uuid. A whole GPU gets NVML's number where it is free; slices come after all GPUs."""

    def __init__(self) -> None:
        self._gpus: dict[str, int] = {}
        self._slices: dict[str, int] = {}
        self._listed = 0

    def expect(self, listed: int) -> None:
        """Note how many whole GPUs the driver lists."""
        self._listed = max(self._listed, listed)

    def of_gpu(self, uuid: str | None, position: int) -> int:
        """Return the number of a whole GPU; without a uuid it is known by its position."""
        taken = {*self._gpus.values(), *self._slices.values()}
        free = position if position not in taken else self._next()
        return self._gpus.setdefault(uuid or f"at {position}", free)

    def of_slice(self, uuid: str) -> int:
        """Return the number of a MIG slice."""
        return self._slices.setdefault(uuid, self._next())

    def missing(self, present: set[int]) -> list[int]:
        """Return the whole GPUs that were there once and are not among these."""
        return sorted(set(self._gpus.values()) - present)

    def _next(self) -> int:
        return max(self._listed - 1, *self._gpus.values(), *self._slices.values(), -1) + 1
