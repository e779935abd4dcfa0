"""What a request says of its run, and what it does not."""

import json
from typing import Any

import pytest

from slowtok.proxy.http.run_clues import Clues, clues_of, product_of, shown_name, split_run

SESSION = "0a1b2c3d-4444-5555-6666-777788889999"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def ids(said: Any = None, run_name: str | None = None, **fields: str) -> tuple[Any, ...]:
    header = [(name.replace("_", "-"), value) for name, value in fields.items()]
    return clues_of(header, run_name, said).ids


def test_a_request_without_ids_says_nothing() -> None:
    assert clues_of([("Content-Type", "application/json")], None, {"model": "m"}) == Clues()


def test_names_that_somebody_gave_come_first() -> None:
    found = ids(
        {"prompt_cache_key": "key", "metadata": {"session_id": "meta"}},
        "from-url",
        Slowtok_Run="from-header",
        X_Session_Id="session",
        traceparent=f"00-{TRACE}-00f067aa0ba902b7-01",
    )

    assert found == (
        ("header", "from-header"),
        ("url", "from-url"),
        ("session", "session"),
        ("prompt_cache_key", "key"),
        ("metadata", "meta"),
        ("trace", TRACE),
    )


@pytest.mark.parametrize(
    "name",
    [
        "X-Claude-Code-Session-Id",
        "x-opencode-session",
        "x-session-affinity",
        "session_id",
        "session-id",
        "X-KiloCode-TaskId",
        "X-Qwen-Code-Session-Id",
        "Helicone-Session-Id",
    ],
)
def test_session_headers_of_clients(name: str) -> None:
    assert clues_of([(name, SESSION)], None, None).ids == (("session", SESSION),)


@pytest.mark.parametrize("name", ["x-request-id", "sessionid", "x-session-ids", "cookie"])
def test_other_headers_are_no_session(name: str) -> None:
    assert clues_of([(name, SESSION)], None, None).ids == ()


def test_agents_of_claude_code() -> None:
    fields = [
        ("X-Claude-Code-Session-Id", SESSION),
        ("X-Claude-Code-Agent-Id", "agent-2"),
        ("X-Claude-Code-Parent-Agent-Id", "agent-1"),
    ]

    found = clues_of(fields, None, None)

    assert (found.agent, found.parent_agent) == ("agent-2", "agent-1")


@pytest.mark.parametrize(
    ("user", "session"),
    [
        (f"user_ab12_account__session_{SESSION}", SESSION),
        (json.dumps({"device_id": "d", "session_id": SESSION}), SESSION),
        ("somebody", "somebody"),
        ("{broken", "{broken"),
        ("[1]", "[1]"),
    ],
)
def test_the_session_in_anthropics_user_id(user: str, session: str) -> None:
    assert ids({"metadata": {"user_id": user}}) == (("metadata", session),)


def test_ids_of_responses() -> None:
    said = {"previous_response_id": "resp_1", "conversation": {"id": "conv_1"}}

    assert ids(said) == (("previous_response_id", "resp_1"), ("conversation", "conv_1"))


@pytest.mark.parametrize(
    "said",
    [
        {"metadata": []},
        {"metadata": {"session_id": 7}},
        {"conversation": 5, "prompt_cache_key": ["a"]},
        {"conversation": {"id": None}, "previous_response_id": ""},
    ],
)
def test_bodies_of_another_shape_say_nothing(said: dict[str, Any]) -> None:
    assert ids(said) == ()


@pytest.mark.parametrize("text", ["", "00-zz", f"00-{'0' * 32}-00f067aa0ba902b7-01", TRACE])
def test_what_is_no_trace(text: str) -> None:
    assert ids(traceparent=text) == ()


def test_long_ids_are_cut() -> None:
    assert len(ids(X_Session_Id="x" * 10_000)[0][1]) == 512


@pytest.mark.parametrize(("text", "count"), [("0", 0), ("2", 2), ("many", None), ("", None)])
def test_retries(text: str, count: int | None) -> None:
    assert clues_of([("x-stainless-retry-count", text)], None, None).retry == count


@pytest.mark.parametrize(
    ("user_agent", "product"),
    [
        ("claude-cli/2.1.90 (external, cli)", "claude-cli"),
        ("OpenAI/Python 2.8.1", "OpenAI"),
        ("curl/8.5", "curl"),
        ("sk-a-key-in-the-wrong-field", None),
        ("", None),
        (None, None),
        ("(odd)", None),
        ("x" * 200 + "/1", "x" * 40),
    ],
)
def test_the_product_of_a_client(user_agent: str | None, product: str | None) -> None:
    assert product_of(user_agent) == product


@pytest.mark.parametrize(
    ("raw_path", "name", "rest"),
    [
        ("/run/night/v1/chat/completions", "night", "/v1/chat/completions"),
        ("/run/my%20agent/v1/models?limit=1", "my agent", "/v1/models?limit=1"),
        ("/run/a/api/chat", "a", "/api/chat"),
        ("/v1/models", None, "/v1/models"),
        ("/run/", None, "/run/"),
        ("/run/night", None, "/run/night"),
        ("/run//v1/models", None, "/run//v1/models"),
        ("/run/x?y=/z", None, "/run/x?y=/z"),
        ("/run/x/slowtok/status", None, "/run/x/slowtok/status"),
        ("/run/x/%73lowtok/status", None, "/run/x/%73lowtok/status"),
        ("/running/x/v1", None, "/running/x/v1"),
    ],
)
def test_the_run_in_a_base_url(raw_path: str, name: str | None, rest: str) -> None:
    assert split_run(raw_path) == (name, rest)


def test_a_shown_name_is_bounded_and_printable() -> None:
    assert shown_name("a\x1b[31mb\n" + "c" * 100) == "a [31mb " + "c" * 56
