"""What is kept of the last request of each setup, and when it is told again."""

from dataclasses import replace

import pytest

from fakes.cases import case, healthy, with_server, with_tokens
from slowtok.detectors.case.case import Baseline, Case
from slowtok.proxy.observe import setups
from slowtok.proxy.observe.setups import SetupLog

ENGINE = "gpu box"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setups, "REFRESH_S", 0.0)


def kept(log: SetupLog) -> Case:
    (facts,) = log.since(0).values()
    return facts


def test_facts_are_kept_and_nothing_of_the_request_itself() -> None:
    log = SetupLog()
    log.note(ENGINE, healthy())

    facts = kept(log)
    assert (facts.model, facts.device) == (healthy().model, healthy().device)
    assert facts.server.url == healthy().server.url
    assert (facts.host, facts.gpu, facts.timeline.request_id) == ((), (), "")


def test_only_what_changed_is_told_again() -> None:
    log = SetupLog()
    log.note(ENGINE, healthy())
    told = log.number
    log.note(ENGINE, with_server(healthy(), uptime_s=5.0))
    assert log.since(told) == {}

    log.note(ENGINE, replace(healthy(), baseline=Baseline(count=1, decode_tps=100.0)))
    assert [facts.baseline.count for facts in log.since(told).values()] == [1]


def test_a_longer_context_is_another_setup() -> None:
    log = SetupLog()
    log.note(ENGINE, with_tokens(case(), prompt=100, completion=10))
    log.note(ENGINE, with_tokens(case(), prompt=5000, completion=10))

    assert [key[2] for key in log.since(0)] == ["0-1k", "4k-8k"]


def test_facts_are_not_looked_at_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setups, "REFRESH_S", 3600.0)
    log = SetupLog()
    log.note(ENGINE, healthy())
    log.note(ENGINE, replace(healthy(), baseline=Baseline(count=1, decode_tps=100.0)))

    assert kept(log).baseline.count == 0


@pytest.mark.parametrize("server", [{"through": "llama-swap"}, {"kind": "ollama"}])
def test_engines_whose_replies_do_not_tell_all_are_left_out(server: dict[str, str]) -> None:
    log = SetupLog()
    log.note(ENGINE, with_server(healthy(), **server))

    assert log.since(0) == {}
