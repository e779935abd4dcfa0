from dataclasses import replace

import pytest

from fakes.cases import batch_shared, healthy, model_load, with_phases, with_server, with_timeline
from fakes.cases import queued as firing
from slowtok.detectors.case import Case, EngineTimings, Neighbours
from slowtok.detectors.finding import Missing
from slowtok.detectors.server import queued

QUIET = [
    pytest.param(healthy(), id="nobody else is there"),
    pytest.param(with_server(firing(), slots=4), id="three others at an engine with four slots"),
    pytest.param(replace(firing(), neighbours=Neighbours()), id="a wait with nobody to wait for"),
    pytest.param(with_phases(firing(), queue_s=0.1), id="a wait that is not felt"),
    pytest.param(with_server(firing(), slept=True), id="the engine slept: the wait is a load"),
    pytest.param(model_load(), id="a load"),
    pytest.param(batch_shared(), id="let in at once, then shared"),
    pytest.param(with_phases(healthy(), queue_s=None), id="no queue time, and nobody else either"),
]
FIRING = [
    pytest.param(
        firing(),
        2.5,
        "because 3 other requests came first and it works on 2 at once",
        id="more requests than slots",
    ),
    pytest.param(with_server(firing(), slots=None), 2.5, "--parallel 4", id="slots are not known"),
    pytest.param(
        replace(firing(), neighbours=Neighbours(in_flight_at_send=2)),
        2.5,
        "because 2 other requests came first",
        id="as many others as slots",
    ),
    pytest.param(
        with_timeline(
            replace(firing(), neighbours=Neighbours()), engine=EngineTimings(queue_s=2.5)
        ),
        2.5,
        "did not come through this proxy",
        id="the engine says so, others are out of sight",
    ),
    pytest.param(with_server(firing(), kind="ollama"), 2.5, "OLLAMA_NUM_PARALLEL=4", id="Ollama"),
]
MISSING = [
    pytest.param(
        with_phases(firing(), queue_s=None), "time in the engine's queue", id="queue time not known"
    ),
]


@pytest.mark.parametrize("case", QUIET)
def test_quiet(case: Case) -> None:
    assert queued.detect(case) is None


@pytest.mark.parametrize(("case", "lost_s", "said"), FIRING)
def test_fires(case: Case, lost_s: float, said: str) -> None:
    finding = queued.detect(case)

    assert finding is not None
    assert finding.phase == "queue"
    assert finding.lost_s == pytest.approx(lost_s, rel=0.02)
    assert said in f"{finding.summary} {finding.remedy}"


@pytest.mark.parametrize(("case", "fact"), MISSING)
def test_names_the_missing_fact(case: Case, fact: str) -> None:
    with pytest.raises(Missing) as missing:
        queued.detect(case)

    assert missing.value.fact == fact
