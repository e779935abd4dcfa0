from dataclasses import replace

import pytest

from fakes.cases import (
    host_contention,
    slow_reader,
    with_phases,
    with_server,
    with_timeline,
    with_tokens,
)
from fakes.cases import slow_network as firing
from fakes.cause_tests import fires, found, lacks, quiet
from fakes.gpu_cases import gpu_case
from slowtok.detectors.case.case import Case
from slowtok.detectors.causes.client import slow_network

ENGINE_S = 3.008  # 449 tokens at 6.7 ms


def local(before: Case) -> Case:
    return with_server(before, local=True)


def in_one_piece(*, head_late_s: float = 3.0) -> Case:
    """An answer of 3 s of decode that came at once, its head with it."""
    whole = with_phases(firing(), decode_stream_s=0.01, prefill_s=0.1, queue_s=0.0)
    sent_s = whole.timeline.sent_at_s or 0.0
    first_s = sent_s + 0.1 + 3.0
    return with_timeline(
        whole, headers_at_s=sent_s + 0.1 + head_late_s, first_token_at_s=first_s, token_at_s=()
    )


QUIET = [
    pytest.param(with_server(gpu_case(), local=False), id="healthy on another machine"),
    pytest.param(with_timeline(firing(), stream=False), id="not streamed: there is no arrival"),
    pytest.param(with_phases(firing(), decode_stream_s=None), id="no arrival at all"),
    pytest.param(with_phases(firing(), decode_stream_s=3.4), id="0.4 s more than the engine"),
    pytest.param(
        with_phases(firing(), decode_s=30.0, decode_stream_s=33.0), id="a tenth more than it"
    ),
    pytest.param(
        with_phases(firing(), decode_s=4.0, decode_stream_s=3.5), id="hidden reasoning: less"
    ),
    pytest.param(with_timeline(firing(), client_blocked_s=4.5), id="the client did not read"),
    pytest.param(with_timeline(firing(), loop_lag_s=4.0), id="slowtok woke late"),
    pytest.param(slow_reader(), id="the way to the client"),
    pytest.param(host_contention(), id="the engine itself is slow"),
    pytest.param(
        with_phases(local(firing()), source="stream"),
        id="on this machine, without times of its own",
    ),
    pytest.param(
        with_phases(firing(), decode_stream_s=0.2, source="stream"), id="too short to be felt"
    ),
    pytest.param(in_one_piece(head_late_s=0.0), id="a tool call: the head came in time"),
    pytest.param(
        with_server(in_one_piece(), kind="ollama"),
        id="Ollama collects a tool call and sends its head with it",
    ),
    pytest.param(with_phases(in_one_piece(), queue_s=2.5), id="most of the wait was a queue"),
]
FIRING = [
    pytest.param(
        firing(),
        8.0 - ENGINE_S,
        "generated the answer in 3.0 s, but it arrived here over 8.0 s, in bursts of about 10",
        id="a remote llama-server",
    ),
    pytest.param(
        with_phases(with_server(firing(), kind="vllm"), source="metrics"),
        8.0 - ENGINE_S,
        "cable instead of Wi-Fi",
        id="a remote vLLM, by its counters",
    ),
    pytest.param(
        local(firing()),
        8.0 - ENGINE_S,
        "an ssh tunnel",
        id="what listens here only passes on to another machine",
    ),
    pytest.param(
        with_tokens(firing(), drafted=900, accepted=400),
        8.0 - ENGINE_S,
        "over 8.0 s: the way",
        id="bursts of drafts are not the network's",
    ),
]
MISSING = [
    pytest.param(
        with_phases(with_server(firing(), kind="vllm"), source="stream"),
        "decode time by the engine's own clock",
        id="a remote vLLM that tells no times",
    ),
    pytest.param(
        with_phases(firing(), decode_s=None),
        "decode time by the engine's own clock",
        id="no decode time",
    ),
]


test_quiet = quiet(slow_network, QUIET)
test_fires = fires(slow_network, "lost_s said", FIRING, phase="delivery")
test_names_the_missing_fact = lacks(slow_network, MISSING)


def test_a_buffered_answer_is_told_and_lost_nothing() -> None:
    finding = found(slow_network, in_one_piece())

    assert finding.informational
    assert "came in one piece 3.0 s after its first token" in finding.summary
    assert "proxy_buffering off" in finding.remedy


def test_a_way_over_the_network_is_believed_more_than_one_on_this_machine() -> None:
    assert (
        found(slow_network, firing()).confidence > found(slow_network, local(firing())).confidence
    )


def test_thinned_arrivals_tell_no_bursts() -> None:
    finding = found(slow_network, with_tokens(firing(), completion=40_000))

    assert "bursts" not in finding.summary
    assert len(finding.evidence) == 2


def test_arrivals_that_are_not_known_tell_none_either() -> None:
    bare = replace(firing(), timeline=replace(firing().timeline, token_at_s=()))

    assert "bursts" not in found(slow_network, bare).summary
