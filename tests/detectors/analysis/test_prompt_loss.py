"""Prompt tokens that were computed again, as the record counts them."""

from typing import Any

import pytest

from fakes.prompt_cases import TOKENS, changed_late, grown
from slowtok.detectors.analysis.prompt_loss import recomputed_of
from slowtok.detectors.case.case import Case


@pytest.mark.parametrize(
    ("case", "again"),
    [
        pytest.param(grown(cached=0), 2520, id="the engine lost it all"),
        pytest.param(grown(cached=1000), 1520, id="the engine lost a part"),
        pytest.param(grown(cached=2520), 0, id="the engine kept it all"),
        # characters are no tokens: a template may leave out what the client sends again
        pytest.param(grown(cached=2490), 0, id="kept, as far as characters tell"),
        pytest.param(changed_late(cached=2000), 660, id="what stands behind a change is known"),
        pytest.param(changed_late(cached=2650), 0, id="less than a block"),
        pytest.param(grown(cached=None), None, id="the engine does not count"),
    ],
)
def test_tokens_that_were_computed_again(case: Case, again: int | None) -> None:
    assert recomputed_of(case) == again


@pytest.mark.parametrize("said", [{"shared_ratio": 1.0}, {"shared_ratio": 0.95}])
def test_what_a_grown_conversation_repeats_of_itself_is_new(said: dict[str, Any]) -> None:
    assert recomputed_of(grown(cached=TOKENS * 9 // 10, **said)) == 0
