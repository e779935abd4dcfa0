"""Bytes of any kind for everything that reads what others wrote; what each may raise is named here.

Bounded and the same in every run; `FUZZ=20000` tries that many others. What was found once stays
here as an example.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from fakes.proxy import serving
from fakes.recorder import HEALTHY
from fakes.upstream import LOOKS, listening
from fakes.wire import JSON, reply
from slowtok.config.settings import SettingsError, load
from slowtok.proxy.engines.counters.metrics import cache_config, read_counters
from slowtok.proxy.engines.counters.slots import read_slots
from slowtok.proxy.engines.models.safetensors_facts import parse_header
from slowtok.proxy.engines.probing.reply import ProbeReply
from slowtok.proxy.http.api_key import fields_with
from slowtok.proxy.sampling.host.redaction import redact_arguments
from slowtok.proxy.sampling.protocol import BadLine, parse_line
from slowtok.proxy.server.origins import refusal_reason
from slowtok.proxy.stream.apis import find_api
from slowtok.proxy.stream.call import read_call
from slowtok.proxy.stream.meter import Meter

DATA = Path(__file__).resolve().parents[1] / "data" / "streams"
TRIES = int(os.environ.get("FUZZ", "150"))
BOUNDED = settings(
    max_examples=TRIES,
    suppress_health_check=list(HealthCheck),
)
FEW = settings(BOUNDED, max_examples=max(TRIES // 10, 1))
PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/api/chat"),
    *("/api/generate", "/completion", "/infill", "/v1/embeddings", "/api/embed", "/v1/rerank"),
)
TYPES = ("text/event-stream", "application/x-ndjson", "application/json")
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 1 << 63, 1e308, -0.0, "", "1", "\ud7ff", "a\r\nb", "x" * 300])
    | st.integers()
    | st.floats()
    | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=5)
            | st.sampled_from(
                [
                    *("choices", "delta", "message", "content", "usage", "timings", "error", "id"),
                    *("model", "messages", "prompt", "stream", "stream_options", "input", "type"),
                    *("role", "text", "index", "finish_reason", "prompt_n", "predicted_ms", "done"),
                    *("kind", "port", "at_s", "gpu", "pid", "is_processing", "data_offsets"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
DOCUMENTS = VALUES.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass"))
FRAMES = st.sampled_from([b"data: ", b"\n\n", b"\r\n", b"event: error\n", b": ", b"[DONE]", b"\0"])
SEEDS = st.sampled_from(sorted(path for path in DATA.rglob("*") if path.is_file()))


@st.composite
def torn(draw: st.DrawFn) -> bytes:
    """A recorded reply of a real engine, with something else in the middle of it."""
    text = draw(SEEDS).read_bytes()[:20_000]
    begin = draw(st.integers(0, len(text)))
    end = draw(st.integers(begin, min(len(text), begin + 200)))
    return text[:begin] + draw(st.binary(max_size=40) | DOCUMENTS) + text[end:]


BYTES = st.binary(max_size=200) | st.lists(FRAMES | DOCUMENTS, max_size=8).map(b"".join) | torn()


def meter(text: bytes) -> None:
    """Every kind of API, every kind of reply, at once and byte by byte at its end."""
    for path in PATHS:
        api = find_api("POST", path)
        assert api is not None
        for content_type in TYPES:
            reader = Meter(api, content_type)
            reader.feed(text[:-20], 0.0)
            for number in range(max(len(text) - 20, 0), len(text)):
                reader.feed(text[number : number + 1], 1.0)
            reader.finish(2.0)


def call(text: bytes) -> None:
    for path in PATHS:
        api = find_api("POST", path)
        assert api is not None
        read_call(api, text)


def words(text: bytes) -> str:
    return text.decode("latin-1")


def toml(text: bytes) -> None:
    load({}, {}, words(text), "my.toml")
    load({}, {"SLOWTOK_UPSTREAM": words(text), "SLOWTOK_LISTEN": words(text)})


def guard(text: bytes) -> None:
    said = words(text)
    refusal_reason(said, said, own_hosts=(), allowed=(), target=said, site=said, mode=said)


def key(text: bytes) -> None:
    fields = CIMultiDict([("Authorization", f"Basic {words(text)}"), ("x-api-key", words(text))])
    assert fields_with(CIMultiDictProxy(fields), "kiwi-7") == frozenset()


READERS: dict[str, tuple[Callable[[bytes], object], tuple[type[Exception], ...]]] = {
    "replies of engines": (meter, ()),
    "requests of clients": (call, ()),
    "metrics of engines": (read_counters, ()),
    "cache metrics of engines": (cache_config, ()),
    "slots of llama-server": (lambda text: read_slots(ProbeReply(status=200, body=text)), ()),
    "lines of the sampling process": (parse_line, (BadLine,)),
    "headers of model files": (parse_header, (ValueError, LookupError, TypeError, AttributeError)),
    "settings": (toml, (SettingsError,)),
    "hosts and origins": (guard, ()),
    "keys": (key, ()),
    "command lines": (lambda text: redact_arguments(words(text).split("\0")), ()),
}


@pytest.mark.parametrize("name", READERS)
def test_no_bytes_harm_a_reader(name: str) -> None:
    read, may_raise = READERS[name]

    @BOUNDED
    @given(BYTES)
    @example(b"[]")
    @example(b'{"a": {"shape": [1], "data_offsets": [0], "dtype": 1}}')
    def harmless(text: bytes) -> None:
        with contextlib.suppress(*may_raise):
            read(text)

    harmless()


@FEW
@given(st.sampled_from(["llama-server", "vllm", "ollama"]), st.data())
def test_no_word_of_an_engine_harms_a_request(kind: str, data: st.DataObject) -> None:
    """Each of its own pages may say anything: the request passes, and has its record."""
    pages = {path: data.draw(DOCUMENTS | BYTES, label=path) for path in LOOKS[kind]}
    asyncio.run(ask(kind, pages))


async def ask(kind: str, pages: dict[str, bytes]) -> None:
    with TemporaryDirectory() as name:
        async with listening(kind) as engine:
            closing = ("Connection: close", JSON)
            engine.looks = {path: reply(page, *closing) for path, page in pages.items()}
            engine.reply = reply(HEALTHY, JSON)
            async with serving(Path(name), engine.url) as proxy:
                client = await proxy.connect()
                await client.chat(stream=False)
                head, body = await client.reply()
                record = await proxy.record(head.get("slowtok-id"))
                status = await proxy.own("/slowtok/status")

    assert (head.status, body) == (200, HEALTHY)
    assert record["status"] == 200
    assert status["counts"]["failures"] == {}
