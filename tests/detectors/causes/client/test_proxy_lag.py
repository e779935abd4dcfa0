import pytest

from fakes.cases import healthy, slow_network, slow_reader, with_host, with_phases, with_timeline
from fakes.cases import proxy_lag as firing
from fakes.cause_tests import fires, found, quiet
from fakes.engine_cases import with_gaps
from fakes.gpu_cases import gpu_case
from slowtok.detectors.case.case import Case
from slowtok.detectors.causes.client import proxy_lag
from slowtok.detectors.causes.client import slow_reader as reader

QUIET = [
    pytest.param(with_timeline(healthy(), proxy_s=0.04), id="40 ms"),
    pytest.param(
        with_timeline(gpu_case(completion=4000), proxy_s=0.5), id="half a second of half a minute"
    ),
    pytest.param(with_timeline(healthy(), loop_lag_s=2.0), id="late once, and nothing came late"),
    pytest.param(slow_reader(), id="the client's connection was full"),
    pytest.param(slow_network(), id="the engine's answer came late"),
    pytest.param(with_timeline(slow_network(), loop_lag_s=0.2), id="it came far later than that"),
]
LATE = with_timeline(slow_reader(), client_blocked_s=0.0, loop_lag_s=1.8)
FIRING = [
    pytest.param(firing(), 2.0, "2.00 s in its own steps", id="before it was sent"),
    pytest.param(
        with_timeline(gpu_case(), proxy_s=2.0),
        2.0,
        "fault of slowtok's; please report it",
        id="nobody else's fault",
    ),
    pytest.param(LATE, 1.8, "1.80 s because its event loop woke late", id="it was passed on late"),
    pytest.param(
        with_timeline(slow_network(), loop_lag_s=6.0), 4.99, "neither the engine", id="read late"
    ),
    pytest.param(
        with_host(firing(), cpu_busy_cores=1.99),
        2.0,
        "All 2 cores of this machine were busy: leave one to slowtok (start llama-server with "
        "--threads 1)",
        id="no core was free",
    ),
]


test_quiet = quiet(proxy_lag, QUIET)
test_fires = fires(proxy_lag, "lost_s said", FIRING, phase="delivery")


def test_what_slowtok_passed_on_late_is_not_the_clients_fault() -> None:
    assert reader.detect(with_phases(LATE, delivery_s=2.0)) is None


def frozen(*, lag_s: float, times: int = 2) -> Case:
    """An answer that stood still for two seconds, so often, and was no later for it in the end."""
    gaps_s = ([0.0078] * 100 + [2.0]) * times + [0.0078] * 100
    return with_timeline(with_gaps(gpu_case(), gaps_s), loop_lag_s=lag_s)


def test_freezes_that_slowtok_caught_up_with_are_told_and_cost_nothing() -> None:
    finding = found(proxy_lag, frozen(lag_s=2.0))

    assert finding.informational
    assert finding.lost_s == 0.0
    assert "saw it freeze 2 times" in finding.summary
    assert "freeze 1 time;" in found(proxy_lag, frozen(lag_s=2.0, times=1)).summary
    assert [e.value for e in finding.evidence] == pytest.approx([2.0, 2.0])


def test_freezes_that_are_longer_than_slowtok_was_late_are_not_its_own() -> None:
    assert proxy_lag.detect(frozen(lag_s=1.5)) is None


def test_a_hitch_as_a_loaded_machine_has_them_is_not_told() -> None:
    gaps_s = [0.0078] * 100 + [0.7] + [0.0078] * 100
    assert proxy_lag.detect(with_timeline(with_gaps(gpu_case(), gaps_s), loop_lag_s=0.7)) is None
