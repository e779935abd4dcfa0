"""The last ten minutes of samples, by time."""

from collections import deque
from typing import Generic, Protocol, TypeVar

KEEP_S = 600.0
MAX_SAMPLES = 12_000
"""Ten minutes of two GPUs at 10 Hz. With more GPUs the ring reaches less far back."""


class Stamped(Protocol):
    """Anything that was taken at a moment of the monotonic clock."""

    @property
    def at_s(self) -> float:
        """Return that moment."""


Sample = TypeVar("Sample", bound=Stamped)


class Ring(Generic[Sample]):
    """Keeps samples in the order of their times; what is too old or too many falls out."""

    def __init__(self, keep_s: float = KEEP_S, most: int = MAX_SAMPLES) -> None:
        self._keep_s = keep_s
        self._samples: deque[Sample] = deque(maxlen=most)

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, sample: Sample) -> None:
        """Put a sample in its place: one that a driver held up comes after newer ones of others."""
        newer: list[Sample] = []
        while self._samples and self._samples[-1].at_s > sample.at_s:
            newer.append(self._samples.pop())
        self._samples.append(sample)
        self._samples.extend(reversed(newer))
        while self._samples[0].at_s < self._samples[-1].at_s - self._keep_s:
            self._samples.popleft()

    def window(self, from_s: float, to_s: float) -> tuple[Sample, ...]:
        """Return the samples taken from `from_s` to `to_s`, both included, oldest first."""
        found = []
        for sample in reversed(self._samples):  # windows are mostly recent
            if sample.at_s < from_s:
                break
            if sample.at_s <= to_s:
                found.append(sample)
        return tuple(reversed(found))
