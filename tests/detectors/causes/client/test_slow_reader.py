import pytest

from fakes.cases import case, healthy, with_phases, with_timeline
from fakes.cases import slow_reader as firing
from fakes.cause_tests import fires, quiet
from slowtok.detectors.causes.client import slow_reader

QUIET = [
    pytest.param(
        with_timeline(healthy(), client_blocked_s=4.0), id="behind for a while, caught up in time"
    ),
    pytest.param(with_timeline(healthy(), client_blocked_s=0.4), id="a stop that is not felt"),
    pytest.param(
        with_timeline(case(ms_per_token=50.0), client_blocked_s=2.0),
        id="under a fifth of a long answer",
    ),
]
FIRING = [
    pytest.param(firing(), 2.0, "behind for 2.5 s", id="behind until after the end"),
    pytest.param(
        with_phases(healthy(), delivery_s=1.5),
        1.5,
        "the engine was not the limit",
        id="the rest came late",
    ),
]


test_quiet = quiet(slow_reader, QUIET)
test_fires = fires(slow_reader, "lost_s said", FIRING, phase="delivery")
