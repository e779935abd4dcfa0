"""What a detector may say."""

import pytest

from slowtok.detectors.case.finding import Finding, Missing, charge, need


def test_need_passes_what_is_known_and_zero_is_known() -> None:
    assert need(0.0, "idle time") == 0.0


def test_need_stops_at_what_is_not_known() -> None:
    with pytest.raises(Missing) as stopped:
        need(None, "idle time")

    assert stopped.value.fact == "idle time"


@pytest.mark.parametrize(
    ("lost_s", "said"), [(0.0004, "0 ms"), (0.25, "250 ms"), (1.0, "1.0 s"), (84.21, "84.2 s")]
)
def test_charge_says_the_loss(lost_s: float, said: str) -> None:
    finding = Finding(
        phase="decode",
        confidence=1.0,
        lost_s=9.0,
        summary="{lost} of it, {lost}.",
        remedy="",
        evidence=(),
    )

    charged = charge(finding, lost_s)

    assert charged.lost_s == lost_s
    assert charged.summary == f"{said} of it, {said}."
