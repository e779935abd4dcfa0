from dataclasses import replace

import pytest

from fakes.cases import batch_shared, healthy, queued, with_server
from fakes.cause_tests import found, quiet
from fakes.prompt_cases import abandoned_request as firing
from slowtok.detectors.case.case import Abandoned, Case, Neighbours
from slowtok.detectors.causes.server import abandoned_request
from slowtok.detectors.diagnosis.diagnose import diagnose


def beside(before: Case, *, seen_s: float | None) -> Case:
    """The case, with one who had left among its neighbours."""
    left = Abandoned(count=1, left_s=0.5, seen_s=seen_s)
    return replace(before, neighbours=replace(before.neighbours, abandoned=left))


QUIET = [
    pytest.param(queued(), id="others were first, and stayed"),
    pytest.param(beside(healthy(), seen_s=0.0), id="one left, and the engine stopped"),
    pytest.param(firing(seen_s=0.3), id="it stopped soon: something else was waited for"),
    pytest.param(beside(queued(), seen_s=None), id="others were there, and nothing was seen"),
    pytest.param(firing(seen_s=None, left_s=90.0), id="left long ago, and nothing was seen"),
    pytest.param(beside(batch_shared(), seen_s=0.4), id="gone for most of the decode"),
]


test_quiet = quiet(abandoned_request, QUIET)


def test_a_wait_for_a_slot_that_works_for_nobody() -> None:
    finding = found(abandoned_request, firing())

    assert finding.phase == "queue"
    assert finding.lost_s == pytest.approx(2.5)
    assert "0199f3c2-0000-7000-8000-000000000002" in finding.summary
    assert "X-Conversation-Id" in finding.remedy
    of_vllm = found(abandoned_request, with_server(firing(), kind="vllm"))
    assert "X-Conversation-Id" not in of_vllm.remedy
    assert "stops when a client leaves" in of_vllm.remedy


def test_without_a_look_at_the_engine_it_is_less_sure() -> None:
    seen = found(abandoned_request, firing())
    guessed = found(abandoned_request, firing(seen_s=None))

    assert guessed.confidence < seen.confidence


def test_a_batch_shared_with_one_who_left() -> None:
    case = beside(batch_shared(), seen_s=6.0)
    finding = found(abandoned_request, case)

    assert finding.phase == "decode"
    assert list(diagnose(case).findings)[:1] == ["abandoned-request"]


def test_it_comes_before_the_queue_that_follows_from_it() -> None:
    case = replace(firing(), neighbours=replace(firing().neighbours, in_flight_at_send=1))
    causes = list(diagnose(case).findings)

    assert causes[0] == "abandoned-request"


def test_nobody_in_particular() -> None:
    finding = found(abandoned_request, firing(request_id=None, count=3))

    assert "3 clients that had left." in finding.summary
    assert Neighbours().abandoned is None
