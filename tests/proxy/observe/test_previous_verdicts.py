"""Which verdict the next reply tells."""

from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.outputs.headers import MAX_MODELS_KEPT, PreviousVerdicts
from slowtok.proxy.relay.exchange import Exchange


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


NORMAL = Diagnosis(verdict="normal")


def test_the_last_to_end_counts_not_the_last_to_be_concluded() -> None:
    verdicts = PreviousVerdicts()
    verdicts.note(exchange("later", "a", 2.0), NORMAL)
    verdicts.note(exchange("earlier", "a", 1.0), NORMAL)

    assert verdicts.header("a") == {"slowtok-previous": 'normal;id="later"'}


def test_each_model_has_its_own_and_none_is_one_too() -> None:
    verdicts = PreviousVerdicts()
    verdicts.note(exchange("nameless", None, 1.0), NORMAL)

    assert verdicts.header(None) == {"slowtok-previous": 'normal;id="nameless"'}
    assert verdicts.header("a") == {}


def test_models_that_were_used_long_ago_are_forgotten() -> None:
    verdicts = PreviousVerdicts()
    for number in range(MAX_MODELS_KEPT + 1):
        verdicts.note(exchange(str(number), str(number), 1.0), NORMAL)

    assert verdicts.header("0") == {}
    assert verdicts.header("1") != {}
