"""About how long a prompt is, from earlier requests."""

import pytest

from fakes.cases import healthy, with_phases, with_tokens
from slowtok.detectors.case.case import PromptPrefix
from slowtok.proxy.observe.prompts import KEEP_MODELS, PromptEstimates
from slowtok.proxy.relay.exchange import Exchange, PromptEstimate
from slowtok.proxy.stream.prompt_fingerprint import fingerprint_prompt


def request(chars: int, *, same_chars: int | None = None) -> Exchange:
    return Exchange(
        request_id="1", method="POST", path="/v1/completions", started_unix_s=0.0,
        accepted_at_s=0.0, model="m", engine_name="e",
        prompt=fingerprint_prompt({"prompt": "a" * chars}),
        prefix=None
        if same_chars is None
        else PromptPrefix(chars=chars, common_prefix_chars=same_chars, shared_ratio=0.0),
    )  # fmt: skip


def learned(*seen: tuple[int, int], prefill_tps: float | None = 500.0) -> PromptEstimates:
    guesses = PromptEstimates()
    for chars, tokens in seen:
        case = with_tokens(with_phases(healthy(), prefill_tps=prefill_tps), prompt=tokens, cached=0)
        guesses.learn("e m", request(chars), case)
    return guesses


def test_it_is_learned_of_each_model() -> None:
    guesses = learned((4000, 1000), (2000, 500))

    assert guesses.estimate("e m", request(8000)) == PromptEstimate(
        tokens=2000, new_tokens=2000, tps=500.0
    )
    assert guesses.estimate("e another", request(8000)) is None
    assert PromptEstimates().estimate("e m", request(8000)) is None


def test_short_prompts_are_mostly_template_and_teach_nothing() -> None:
    assert learned((10, 40)).estimate("e m", request(8000)) is None


def test_without_a_rate_there_is_none() -> None:
    found = learned((4000, 1000), prefill_tps=None).estimate("e m", request(400))

    assert found == PromptEstimate(tokens=100, new_tokens=100, tps=None)


def test_what_an_earlier_prompt_began_with_may_be_cached() -> None:
    found = learned((4000, 1000)).estimate("e m", request(4000, same_chars=3000))

    assert found == PromptEstimate(tokens=1000, new_tokens=250, tps=500.0)


@pytest.mark.parametrize("odd", [{}, {"prompt": ""}])
def test_a_request_without_a_prompt_has_no_length(odd: dict[str, str]) -> None:
    one = request(1)
    one.prompt = fingerprint_prompt(odd)

    assert learned((4000, 1000)).estimate("e m", one) is None


def test_memory_is_bounded() -> None:
    guesses = learned((4000, 1000))
    case = with_tokens(healthy(), prompt=1000, cached=0)
    for n in range(100):
        guesses.learn(f"e {n}", request(4000), case)

    assert guesses.estimate("e m", request(4000)) is None
    assert guesses.estimate("e 99", request(4000)) is not None
    assert max(len(guesses._sizes), len(guesses._tps)) == KEEP_MODELS


def test_memory_is_bounded_for_prompts_that_were_not_looked_at() -> None:
    guesses = PromptEstimates()
    for n in range(100):
        one = request(4000)
        one.prompt = None
        guesses.learn(f"e {n}", one, with_tokens(healthy(), prompt=1000, cached=0))

    assert len(guesses._tps) == KEEP_MODELS
