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
    assert facts is not None
    return facts


def note(log: SetupLog, finished: Case, baseline: Baseline | None = None, **more: bool) -> None:
    """Note a case after which its setup's baseline is this one; by default the case's own."""
    log.note(ENGINE, finished, lambda asked: baseline or asked.baseline, **more)


def test_facts_are_kept_and_nothing_of_the_request_itself() -> None:
    log = SetupLog()
    note(log, healthy())

    facts = kept(log)
    assert (facts.model, facts.device) == (healthy().model, healthy().device)
    assert facts.server.url == healthy().server.url
    assert (facts.host, facts.gpu, facts.timeline.request_id) == ((), (), "")


def test_only_what_changed_is_told_again() -> None:
    log = SetupLog()
    note(log, healthy())
    told = log.number
    note(log, with_server(healthy(), uptime_s=5.0))
    assert log.since(told) == {}

    note(log, replace(healthy(), baseline=Baseline(count=1, decode_tps=100.0)))
    assert [facts.baseline.count for facts in log.since(told).values() if facts] == [1]


def test_a_longer_context_is_another_setup() -> None:
    log = SetupLog()
    note(log, with_tokens(case(), prompt=100, completion=10))
    note(log, with_tokens(case(), prompt=5000, completion=10))

    assert [key[2] for key in log.since(0)] == ["0-1k", "4k-8k"]


def test_facts_are_not_looked_at_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setups, "REFRESH_S", 3600.0)
    log = SetupLog()
    note(log, healthy())
    note(log, replace(healthy(), baseline=Baseline(count=1, decode_tps=100.0)))

    assert kept(log).baseline.count == 0


@pytest.mark.parametrize("server", [{"through": "llama-swap"}, {"kind": "ollama"}])
def test_engines_whose_replies_do_not_tell_all_are_left_out(server: dict[str, str]) -> None:
    log = SetupLog()
    note(log, with_server(healthy(), **server))

    assert log.since(0) == {}


def test_what_a_request_has_taught_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setups, "REFRESH_S", 3600.0)
    log = SetupLog()
    note(log, healthy())
    note(log, healthy(), Baseline(count=1, decode_tps=100.0), has_taught=True)

    assert kept(log).baseline.decode_tps == 100.0


def test_facts_of_an_engine_that_is_another_one_are_dropped() -> None:
    log = SetupLog()
    note(log, healthy())
    told = log.number
    log.forget("another engine")
    assert log.since(told) == {}

    log.forget(ENGINE)
    assert list(log.since(told).values()) == [None]
    note(log, healthy())
    assert kept(log).model == healthy().model


def test_another_model_drops_what_is_kept_of_other_contexts() -> None:
    log = SetupLog()
    short = with_tokens(healthy(), prompt=100, completion=10)
    note(log, short)
    note(log, with_tokens(healthy(), prompt=5000, completion=10))
    other = replace(short, model=replace(short.model, path="/another.gguf"))
    note(log, other)

    assert {key[2]: facts and facts.model.path for key, facts in log.since(0).items()} == {
        "0-1k": "/another.gguf",
        "4k-8k": None,
    }
