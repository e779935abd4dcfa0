import pytest

from fakes.cases import healthy, with_phases, with_server, with_tokens
from fakes.prompt_cases import long_thinking as firing
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Missing
from slowtok.detectors.causes.server import long_thinking
from slowtok.detectors.diagnosis.diagnose import diagnose

QUIET = [
    pytest.param(healthy(), id="no thoughts"),
    pytest.param(firing(reasoning=1000), id="a third of it"),
    pytest.param(with_tokens(firing(), completion=300, reasoning=200), id="few"),
    pytest.param(with_phases(firing(), decode_s=4.0), id="over in no time"),
    pytest.param(with_tokens(firing(), completion=None), id="no usage"),
]


@pytest.mark.parametrize("case", QUIET)
def test_quiet(case: Case) -> None:
    assert long_thinking.detect(case) is None


@pytest.mark.parametrize(
    ("kind", "setting"),
    [("llama-server", "--reasoning-budget"), ("ollama", "think: false"), ("openai", "own setting")],
)
def test_fires(kind: str, setting: str) -> None:
    finding = long_thinking.detect(with_server(firing(), kind=kind))

    assert finding is not None
    assert finding.informational
    assert "3,000 of 3,300" in finding.summary
    assert setting in finding.remedy


def test_it_makes_nothing_slow() -> None:
    assert diagnose(firing()).verdict == "normal"


def test_names_the_missing_fact() -> None:
    with pytest.raises(Missing) as missing:
        long_thinking.detect(with_phases(firing(), decode_s=None))

    assert missing.value.fact == "decode time"
