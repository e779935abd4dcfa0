from dataclasses import replace

import pytest

from fakes.cases import batch_shared, model_load, with_phases, with_server, with_timeline
from fakes.cases import queued as firing
from fakes.cause_tests import fires, found, lacks, quiet
from slowtok.detectors.case.case import Case, Concurrency, EngineTimings, Neighbours
from slowtok.detectors.case.engine import EngineActivity
from slowtok.detectors.causes.server import queued


def waited(at_engine: Concurrency, in_flight_at_send: int = 0) -> Case:
    """A wait of 2.5 s that the engine was looked at in."""
    neighbours = Neighbours(in_flight_at_send=in_flight_at_send, waiting=at_engine)
    return replace(firing(), neighbours=neighbours)


QUIET = [
    pytest.param(
        waited(Concurrency(looks=3, full_ratio=0.0), in_flight_at_send=3),
        id="others were there, and the engine showed a free slot",
    ),
    pytest.param(waited(Concurrency(looks=3, full_ratio=0.0)), id="a wait with nobody to wait for"),
    pytest.param(
        waited(Concurrency(looks=4, full_ratio=0.0, others_reading_ratio=1.0)),
        id="a slot was free, and another's prompt was read: batch-shared",
    ),
    pytest.param(
        with_phases(waited(Concurrency(looks=2, full_ratio=0.0)), queue_s=None),
        id="its wait is not known, and there was room all the time",
    ),
    pytest.param(
        with_phases(firing(), queue_s=None, ttft_s=0.15), id="a first token that came at once"
    ),
    pytest.param(
        replace(
            with_phases(firing(), queue_s=None), activity=EngineActivity(span_s=9.0, alone=True)
        ),
        id="the engine counted nobody else",
    ),
    pytest.param(with_phases(firing(), queue_s=0.1), id="a wait that is not felt"),
    pytest.param(with_server(firing(), slept=True), id="the engine slept: the wait is a load"),
    pytest.param(model_load(), id="a load"),
    pytest.param(batch_shared(), id="let in at once, then shared"),
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
    pytest.param(
        waited(Concurrency(looks=4, full_ratio=1.0, others_mean=2.0)),
        2.5,
        "did not come through this proxy",
        id="the engine showed no free slot, others are out of sight",
    ),
    pytest.param(
        waited(Concurrency(served_first=2), in_flight_at_send=0),
        2.5,
        "because 2 other requests came first and it works on 2 at once",
        id="those that came in the same moment were served first",
    ),
    pytest.param(
        with_server(waited(Concurrency(looks=5, full_ratio=1.0, others_mean=3.0)), kind="sglang"),
        2.5,
        "--max-running-requests",
        id="SGLang's queue",
    ),
]
MISSING = [
    pytest.param(
        with_server(firing(), slots=4),
        "whether a slot of the engine was free",
        id="three others at an engine with four slots, and no look at them",
    ),
    pytest.param(
        replace(firing(), neighbours=Neighbours()),
        "whether a slot of the engine was free",
        id="a wait, and nobody was looked for",
    ),
    pytest.param(
        replace(with_phases(firing(), queue_s=None), neighbours=Neighbours()),
        "time in the engine's queue",
        id="nobody through the proxy, and a wait of unknown length",
    ),
    pytest.param(
        with_phases(firing(), queue_s=None), "time in the engine's queue", id="queue time not known"
    ),
]


test_quiet = quiet(queued, QUIET)
test_fires = fires(queued, "lost_s said", FIRING, phase="queue")
test_names_the_missing_fact = lacks(queued, MISSING)


def test_the_engines_own_word_is_proof() -> None:
    told = with_timeline(firing(), engine=EngineTimings(queue_s=2.5))
    by_word, by_subtraction = found(queued, told), found(queued, firing())
    by_gauges = found(queued, with_phases(firing(), queue_estimated=True))

    assert (by_word.proof_s, by_subtraction.proof_s) == (2.5, 0.0)
    assert by_gauges.confidence < by_subtraction.confidence
