"""Lists of models, read and merged."""

from typing import Any

import pytest

from fakes import recordings
from slowtok.proxy.engines.model_lists import merge, read_list
from slowtok.proxy.engines.probing.reply import ProbeReply


@pytest.mark.parametrize(
    "reply",
    [
        None,
        ProbeReply(status=401, body=b'{"data":[]}'),
        ProbeReply(status=200, body=b"<html>"),
        ProbeReply(status=200, body=b'["data"]'),
        ProbeReply(status=200, body=b'{"data":{}}'),
        ProbeReply(status=200, body=b'{"error":"no"}'),
    ],
)
def test_what_is_no_list(reply: ProbeReply | None) -> None:
    assert read_list(reply) is None


def test_an_empty_list_is_one() -> None:
    assert read_list(ProbeReply(status=200, body=b'{"data":[]}')) == {"data": []}


def test_recorded_lists_keep_every_entry() -> None:
    names = ("llama-server-2026.10.models", "vllm-0.32.models")
    replies = [recordings.unframe(recordings.load(name)) for name in names]
    lists = [read_list(ProbeReply(status=200, body=reply.body)) for reply in replies]
    [llama, vllm] = [each for each in lists if each]

    merged = merge([llama, vllm])

    assert merged["data"] == llama["data"] + vllm["data"]
    assert len(merged["data"]) == 2
    assert merged["models"] == llama["models"]
    assert merged["object"] == "list"


@pytest.mark.parametrize(
    ("lists", "merged"),
    [
        ([{"data": [{"id": "a"}]}], {"data": [{"id": "a"}]}),
        (
            [{"data": [{"id": "a", "n": 1}]}, {"data": [{"id": "a", "n": 2}, {"id": "b"}]}],
            {"data": [{"id": "a", "n": 1}, {"id": "b"}]},
        ),
        (
            [{"models": [{"name": "a"}]}, {"data": [{"id": "a"}]}],
            {"models": [{"name": "a"}], "data": [{"id": "a"}]},
        ),
        ([{"data": [{"x": 1}, 2]}, {"data": [{"x": 1}]}], {"data": [{"x": 1}, 2, {"x": 1}]}),
        ([{"object": "list", "data": []}, {"object": "other"}], {"object": "list", "data": []}),
    ],
)
def test_merged(lists: list[dict[str, Any]], merged: dict[str, Any]) -> None:
    assert merge(lists) == merged


def test_merging_leaves_the_lists_alone() -> None:
    first: dict[str, Any] = {"data": [{"id": "a"}]}
    merge([first, {"data": [{"id": "b"}]}])

    assert first == {"data": [{"id": "a"}]}
