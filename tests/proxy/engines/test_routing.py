"""Which engine a request is for, where there are several."""

from typing import Any

import pytest

from slowtok.proxy.engines import routing
from slowtok.proxy.engines.engine import Engine
from slowtok.proxy.engines.probing.facts import Identity, Kind
from slowtok.proxy.engines.routing import MODELS


def engine(kind: Kind, *models: str, answers: bool = True, **entry: Any) -> Engine:
    made = Engine(name=kind, url="http://x", given=True, last_kind=kind)
    made.identity = Identity(kind=kind) if answers else None
    made.listed = {MODELS: {"data": [{"id": name, **entry} for name in models]}}
    return made


LLAMA, OLLAMA, VLLM, STUDIO = (
    engine("llama-server", "a", "shared"),
    engine("ollama", "b:latest", "shared"),
    engine("vllm", "c"),
    engine("lm-studio", "d"),
)
ALL = [LLAMA, OLLAMA, VLLM, STUDIO]


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("/v1/chat/completions", [LLAMA, OLLAMA, VLLM, STUDIO]),
        ("/v1/models", ALL),
        ("/", ALL),
        ("/apidocs", ALL),
        ("/api/chat", [OLLAMA]),
        ("/api/tags", [OLLAMA]),
        ("/api/v0/models", [STUDIO]),
        ("/infill", [LLAMA]),
        ("/completions", [LLAMA]),
    ],
)
def test_a_path_that_one_kind_knows_goes_to_that_kind(path: str, kinds: list[Engine]) -> None:
    assert routing.fitting(ALL, path) == kinds


def test_a_path_that_none_knows_goes_to_anybody() -> None:
    assert routing.fitting([LLAMA, VLLM], "/api/chat") == [LLAMA, VLLM]


@pytest.mark.parametrize(
    ("model", "found"),
    [("a", LLAMA), ("b", OLLAMA), ("b:latest", OLLAMA), ("c", VLLM), ("e", None), (None, None)],
)
def test_a_model_is_where_it_is_listed(model: str | None, found: Engine | None) -> None:
    assert routing.pick(ALL, model) is found


def test_of_two_that_list_a_model_the_first_that_answers_is_asked() -> None:
    away = engine("vllm", "shared", "own", answers=False)

    assert routing.pick([LLAMA, OLLAMA], "shared") is LLAMA
    assert routing.pick([away, OLLAMA], "shared") is OLLAMA
    assert routing.pick([away, OLLAMA], "own") is away, "nobody else has it"


def test_first_is_the_first_that_answers() -> None:
    away = engine("vllm", answers=False)

    assert routing.first([away, OLLAMA, LLAMA]) is OLLAMA
    assert routing.first([away]) is away


def test_a_router_of_llama_servers_takes_other_names_too() -> None:
    router = engine("llama-server", "org/model-GGUF", aliases=["model", 3])

    assert routing.pick([OLLAMA, router], "model") is router


@pytest.mark.parametrize(
    ("path", "query", "body", "model"),
    [
        ("/v1/models/org%2Fm", {}, None, "org/m"),
        ("/v1/models/org/m", {}, None, "org/m"),
        ("/v1/models/", {}, None, None),
        ("/props", {"model": "m"}, None, "m"),
        ("/api/show", {}, b'{"model":"m"}', "m"),
        ("/api/show", {}, b'{"name":"m"}', "m"),
        ("/tokenize", {}, b'{"content":"m"}', None),
        ("/tokenize", {}, b'{"model":7}', None),
        ("/tokenize", {}, b"[1]", None),
        ("/tokenize", {}, b"{", None),
        ("/x", {}, None, None),
    ],
)
def test_model_of_what_is_no_generation(
    path: str, query: dict[str, str], body: bytes | None, model: str | None
) -> None:
    assert routing.model_named(path, query, body) == model
