"""What can be ruled out for a request that was cut off."""

import pytest

from fakes.cases import healthy, with_phases, with_timeline
from slowtok.detectors.case import Case
from slowtok.detectors.diagnose import diagnose
from slowtok.detectors.ruled_out import could_apply

NOTHING = {"queue_s": None, "load_s": None, "prefill_s": None, "decode_s": None, "delivery_s": None}


def cut_off(**phases: float) -> Case:
    seen = with_phases(healthy(), decode_tps=None, prefill_tps=None, **{**NOTHING, **phases})
    return with_timeline(seen, ended="client-gone")


@pytest.mark.parametrize("cause", ["queued", "slow-prefill", "long-context", "thermal-throttle"])
def test_a_request_that_ended_by_itself_had_it_all(cause: str) -> None:
    assert could_apply(healthy(), cause)


def test_nothing_can_be_ruled_out_where_nothing_came() -> None:
    diagnosis = diagnose(cut_off())

    assert (diagnosis.verdict, diagnosis.cleared) == ("unknown", ())


@pytest.mark.parametrize(
    ("phases", "cause", "applies"),
    [
        ({"queue_s": 1.0}, "queued", True),
        ({"queue_s": 1.0}, "slow-reader", False),
        ({"prefill_s": 1.0}, "thermal-throttle", True),
        ({"prefill_s": 1.0}, "draft-rejected", False),
        ({"prefill_s": 1.0, "decode_s": 1.0}, "draft-rejected", True),
    ],
)
def test_only_phases_that_it_had(phases: dict[str, float], cause: str, applies: bool) -> None:
    assert could_apply(cut_off(**phases), cause) is applies
