"""Whose verdict `slowtok-previous` tells, and whether it is the newest."""

from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.outputs.previous_verdicts import MAX_MODELS, PreviousVerdicts
from slowtok.proxy.relay.exchange import Exchange

NORMAL = Diagnosis(verdict="normal")


def exchange(name: str, model: str | None, ended_at_s: float) -> Exchange:
    return Exchange(
        request_id=name,
        method="POST",
        path="/v1/chat/completions",
        started_unix_s=0.0,
        accepted_at_s=0.0,
        model=model,
        ended_at_s=ended_at_s,
    )


def test_the_last_to_end_counts_not_the_last_to_be_concluded() -> None:
    verdicts = PreviousVerdicts()
    verdicts.judged(exchange("later", "a", 2.0), NORMAL)
    verdicts.judged(exchange("earlier", "a", 1.0), NORMAL)

    assert verdicts.header("a") == {"slowtok-previous": 'normal;id="later"'}
    assert verdicts.last("a") == (2.0, 'normal;id="later"')


def test_each_model_has_its_own_and_none_is_one_too() -> None:
    verdicts = PreviousVerdicts()
    verdicts.judged(exchange("nameless", None, 1.0), NORMAL)

    assert verdicts.header(None) == {"slowtok-previous": 'normal;id="nameless"'}
    assert verdicts.header("a") == {}


def test_models_that_were_used_long_ago_are_forgotten() -> None:
    verdicts = PreviousVerdicts()
    for number in range(MAX_MODELS + 1):
        verdicts.judged(exchange(str(number), str(number), 1.0), NORMAL)

    assert verdicts.header("0") == {}
    assert verdicts.header("1") != {}


def test_a_verdict_that_is_still_to_come_is_missed() -> None:
    verdicts = PreviousVerdicts()
    assert not verdicts.is_up_to_date("a")

    verdicts.judged(exchange("first", "a", 1.0), NORMAL)
    assert verdicts.is_up_to_date("a")

    verdicts.ended(exchange("second", "a", 2.0))
    assert not verdicts.is_up_to_date("a")

    verdicts.note("a", (2.0, 'slow;id="second"'))
    assert verdicts.is_up_to_date("a")


def test_one_that_ended_before_the_last_verdict_is_not_missed() -> None:
    verdicts = PreviousVerdicts()
    verdicts.judged(exchange("second", "a", 2.0), NORMAL)
    verdicts.ended(exchange("first", "a", 1.0))

    assert verdicts.is_up_to_date("a")
