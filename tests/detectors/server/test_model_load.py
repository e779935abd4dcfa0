import pytest

from fakes.cases import healthy, prompt_cache_miss, queued, with_phases, with_server, with_timeline
from fakes.cases import model_load as firing
from slowtok.detectors.case import Case
from slowtok.detectors.finding import Missing
from slowtok.detectors.server import model_load

QUIET = [
    pytest.param(healthy(), id="the model was there"),
    pytest.param(
        with_phases(healthy(), load_s=0.06), id="a warm Ollama reports tens of milliseconds"
    ),
    pytest.param(queued(), id="others were in the way"),
    pytest.param(prompt_cache_miss(), id="the engine was computing"),
    pytest.param(
        with_server(with_phases(healthy(), load_s=None), slept=None), id="no time for a load"
    ),
    pytest.param(with_phases(queued(), load_s=None), id="a wait, but the engine had the model"),
]
FIRING = [
    pytest.param(firing(), 4.0, "loading took 4.0 s", id="the engine reports it"),
    pytest.param(
        with_phases(firing(), load_s=None),
        4.0,
        "--sleep-idle-seconds",
        id="the engine slept and then took long",
    ),
    pytest.param(
        with_server(firing(), kind="ollama", slept=None), 4.0, "OLLAMA_KEEP_ALIVE=-1", id="Ollama"
    ),
]
MISSING = [
    pytest.param(
        with_server(with_phases(firing(), load_s=None), slept=None),
        "whether the model was loaded before the request",
        id="a long wait, cause not known",
    ),
    pytest.param(
        with_phases(healthy(), load_s=None, prefill_from_at_s=None),
        "start of prefill",
        id="no start of prefill",
    ),
    pytest.param(
        with_timeline(with_phases(healthy(), load_s=None), sent_at_s=None),
        "time the request was sent",
        id="never sent",
    ),
]


@pytest.mark.parametrize("case", QUIET)
def test_quiet(case: Case) -> None:
    assert model_load.detect(case) is None


@pytest.mark.parametrize(("case", "lost_s", "said"), FIRING)
def test_fires(case: Case, lost_s: float, said: str) -> None:
    finding = model_load.detect(case)

    assert finding is not None
    assert finding.phase == "load"
    assert finding.lost_s == pytest.approx(lost_s, rel=0.02)
    assert said in f"{finding.summary} {finding.remedy}"


@pytest.mark.parametrize(("case", "fact"), MISSING)
def test_names_the_missing_fact(case: Case, fact: str) -> None:
    with pytest.raises(Missing) as missing:
        model_load.detect(case)

    assert missing.value.fact == fact
