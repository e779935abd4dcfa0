"""The rules for header fields, without a connection."""

import re
import uuid

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from slowtok.proxy.http.headers import (
    Headers,
    make_request_id,
    make_traceparent,
    to_client,
    to_upstream,
)


def given(*fields: tuple[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(fields))


def upstream(*fields: tuple[str, str]) -> list[tuple[str, str]]:
    passed = to_upstream(given(*fields), request_id="id", traceparent="tp")
    return [
        field
        for field in passed.items()
        if field not in {("X-Request-Id", "id"), ("traceparent", "tp")}
    ]


def client(*fields: tuple[str, str], origin: str | None = None) -> Headers:
    return to_client(given(*fields), origin=origin)


def test_order_case_and_repetition_are_kept() -> None:
    fields = [
        ("B", "1"),
        ("a", "2"),
        ("B", "3"),
        ("Content-Length", "0"),
        ("X-Accel-Buffering", "no"),
    ]

    assert upstream(*fields) == fields
    assert list(client(*fields).items()) == fields


@pytest.mark.parametrize(
    "name",
    [
        "Connection",
        "keep-alive",
        "Proxy-Authenticate",
        "Proxy-Authorization",
        "Proxy-Connection",
        "TE",
        "Trailer",
        "Transfer-Encoding",
        "Upgrade",
        "slowtok-annotate",
        "Slowtok-ID",
    ],
)
def test_fields_of_a_connection_and_ours_go_neither_way(name: str) -> None:
    assert upstream((name, "x")) == []
    assert list(client((name, "x"))) == []


@pytest.mark.parametrize("name", ["Host", "origin", "Expect", "X-Conversation-Id"])
def test_fields_not_for_the_engine(name: str) -> None:
    assert upstream((name, "x")) == []
    assert list(client((name, "x"))) == [name]


def test_fields_that_connection_names_go_too() -> None:
    fields = [
        ("Connection", "close , X-A"),
        ("connection", "x-b,,"),
        ("X-A", "1"),
        ("x-B", "2"),
        ("X-C", "3"),
    ]

    assert upstream(*fields) == [("X-C", "3")]


def test_a_name_that_only_looks_like_ours_passes() -> None:
    assert upstream(("slowtokens", "1"), ("x-slowtok-a", "2")) == [
        ("slowtokens", "1"),
        ("x-slowtok-a", "2"),
    ]


def test_ids_are_made_only_where_there_are_none() -> None:
    made = to_upstream(given(), request_id="id", traceparent="tp")
    kept = to_upstream(
        given(("x-request-id", "mine"), ("Traceparent", "theirs")),
        request_id="id",
        traceparent="tp",
    )

    assert dict(made) == {"X-Request-Id": "id", "traceparent": "tp"}
    assert dict(kept) == {"x-request-id": "mine", "Traceparent": "theirs"}


def test_cors_of_the_engine_passes_where_no_page_asked() -> None:
    assert dict(client(("Access-Control-Allow-Origin", "*"))) == {
        "Access-Control-Allow-Origin": "*"
    }


def test_cors_is_answered_for_the_page_that_asked() -> None:
    passed = client(
        ("Access-Control-Allow-Origin", "*"),
        ("access-control-allow-credentials", "true"),
        origin="app://x",
    )

    assert list(passed.items()) == [
        ("Access-Control-Allow-Origin", "app://x"),
        ("Access-Control-Expose-Headers", "*"),
        ("Vary", "Origin"),
    ]


def test_request_id_is_a_uuid7_of_its_time() -> None:
    made = uuid.UUID(make_request_id(1_700_000_000.123))

    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == 1_700_000_000_123


def test_request_ids_sort_by_time_and_do_not_repeat() -> None:
    ids = [make_request_id(second) for second in (1.0, 2.0, 3e9)]

    assert sorted(ids) == ids
    assert len({make_request_id(1.0) for _ in range(1000)}) == 1000


def test_traceparent_is_of_version_00_and_not_sampled() -> None:
    made = make_traceparent()

    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-00", made)
    assert made != make_traceparent()
    assert make_traceparent(recorded=True).endswith("-01")
