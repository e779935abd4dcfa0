from slowtok.detectors.case.machine import GpuSample
from slowtok.proxy.sampling.ring import Ring


def filled(*times: float, keep_s: float = 600.0, most: int = 100) -> Ring[GpuSample]:
    ring: Ring[GpuSample] = Ring(keep_s=keep_s, most=most)
    for at_s in times:
        ring.add(GpuSample(at_s=at_s, index=0))
    return ring


def times(samples: tuple[GpuSample, ...]) -> list[float]:
    return [sample.at_s for sample in samples]


def test_empty_ring_has_nothing() -> None:
    assert filled().window(0, 1e9) == ()


def test_window_includes_both_ends_in_order() -> None:
    ring = filled(1, 2, 3, 4, 5)

    assert times(ring.window(2, 4)) == [2, 3, 4]
    assert times(ring.window(2.1, 2.9)) == []


def test_old_samples_fall_out() -> None:
    ring = filled(0, 1, 10, 11, keep_s=10)

    assert times(ring.window(0, 20)) == [1, 10, 11]


def test_too_many_samples_push_the_oldest_out() -> None:
    ring = filled(1, 2, 3, 4, most=3)

    assert times(ring.window(0, 20)) == [2, 3, 4]
    assert len(ring) == 3


def test_a_sample_that_comes_late_hides_none() -> None:
    ring = filled(1, 5, 6, 2, 7)

    assert times(ring.window(4, 8)) == [5, 6, 7]
    assert times(ring.window(0, 8)) == [1, 2, 5, 6, 7]
