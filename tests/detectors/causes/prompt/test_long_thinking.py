import pytest

from fakes.cases import with_phases, with_server, with_tokens
from fakes.cause_tests import found, missing_fact, quiet
from fakes.prompt_cases import long_thinking as firing
from slowtok.detectors.causes.prompt import long_thinking

QUIET = [
    pytest.param(firing(reasoning=1000), id="a third of it"),
    pytest.param(with_tokens(firing(), completion=300, reasoning=200), id="few"),
    pytest.param(with_phases(firing(), decode_s=4.0), id="over in no time"),
    pytest.param(with_tokens(firing(), completion=None), id="no usage"),
]


test_quiet = quiet(long_thinking, QUIET)


@pytest.mark.parametrize(
    ("kind", "setting"),
    [("llama-server", "--reasoning-budget"), ("ollama", "think: false"), ("openai", "own setting")],
)
def test_fires(kind: str, setting: str) -> None:
    finding = found(long_thinking, with_server(firing(), kind=kind))

    assert finding.informational
    assert "3,000 of 3,300" in finding.summary
    assert setting in finding.remedy


def test_names_the_missing_fact() -> None:

    assert missing_fact(long_thinking, with_phases(firing(), decode_s=None)) == "decode time"
