"""`docs/apis.md`: each row is driven through the relay, and each cell's words give its number."""

import gzip
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from fakes import origins
from fakes.api_replies import MAKERS, NAMES, Played, play
from fakes.client import Client
from fakes.origins import (
    ABSENT,
    DECODE_TPS,
    GAINED_CACHED_TOKENS,
    GAINED_MS,
    PREFILL_TPS,
    Row,
    field,
    fields,
    time_ms,
)
from fakes.proxy import Served, serving
from fakes.upstream import CLOSE, MODEL, Arrival, Looks, Upstream, listening
from fakes.wire import LAST_CHUNK, chunk, chunked_head, reply, until
from slowtok.detectors.case.case import Baseline, Case, History, Timeline
from slowtok.proxy.history.baselines import Baselines
from slowtok.proxy.history.history import EngineHistory
from slowtok.proxy.observe import observer
from slowtok.proxy.stream.apis import _APIS, find_api

ROWS = list(origins.rows())
PATIENCE_S = 10.0
JSON = "Content-Type: application/json"
TIMES = {"queue": "queue_ms", "load": "load_ms", "prefill": "prefill_ms", "decode": "decode_ms",
         "TTFT": "ttft_ms"}  # fmt: skip
COUNTS = ("prompt", "cached", "completion")
KINDS = {
    "llama-server": "llama-server", "vLLM": "vllm", "vLLM with metrics": "vllm",
    "Ollama before 0.34": "ollama", "Ollama 0.34": "ollama", "Ollama from 0.34": "ollama",
    "Ollama from 0.35": "ollama",
    "LM Studio": "lm-studio", "SGLang": "sglang", "other": "openai",
}  # fmt: skip
VERSIONS = {  # as it was recorded; the others' numbers do not depend on it
    "Ollama before 0.34": "0.17.4", "Ollama 0.34": "0.34.0", "Ollama from 0.34": "0.34.0",
    "Ollama from 0.35": "0.35.1",
}  # fmt: skip


def looks(kind: str) -> Looks:
    """What tells the engines apart that `fakes.upstream` does not know."""
    owner = {"lm-studio": "organization_owner", "sglang": "sglang"}.get(kind, "someone")
    models = {"data": [{"id": MODEL, "object": "model", "owned_by": owner}]}
    return {"/v1/models": reply(orjson.dumps(models), JSON, CLOSE)}


def page(gained: int) -> bytes:
    """A vLLM's counters after so many requests."""
    counts = {"e2e_request_latency_seconds_count": 1.0, "request_params_n_count": 1.0}
    counts |= {f"request_{k}_time_seconds_sum": ms / 1000 for k, ms in GAINED_MS.items()}
    counts["prompt_tokens_cached_total"] = GAINED_CACHED_TOKENS
    lines = [f"vllm:{name} {value * gained}" for name, value in counts.items()]
    lines += ["vllm:num_requests_running 0", "vllm:num_requests_waiting 0"]
    return reply("\n".join(lines).encode() + b"\n", "Content-Type: text/plain", CLOSE)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are known for an estimate, and a busy machine has time for the counters."""
    history = History(best_prefill_tps=PREFILL_TPS)
    monkeypatch.setattr(EngineHistory, "of", lambda *_: history)
    monkeypatch.setattr(Baselines, "find", lambda *_: Baseline(decode_tps=DECODE_TPS))
    monkeypatch.setattr(observer, "COUNTERS_S", PATIENCE_S)
    monkeypatch.setattr(observer, "LAST_SAMPLE_S", PATIENCE_S)


async def drive(
    row: Row, played: Played, state_dir: Path, *fields: str, gained: int = 1
) -> tuple[dict[str, Any], Timeline]:
    """Send one request through the relay and play its reply; return its record and its times.

    `gained` requests are in the engine's counters when it is alone here.
    """
    kind = KINDS[row.engine]
    async with listening(kind if kind in ("llama-server", "vllm", "ollama") else "unknown") as at:
        at.looks |= looks(kind) if kind not in ("llama-server", "vllm", "ollama") else {}
        if row.engine in VERSIONS:
            said = orjson.dumps({"version": VERSIONS[row.engine]})
            at.looks["/api/version"] = reply(said, JSON, CLOSE)
        if row.alone:
            at.looks["/metrics"] = page(0)
        async with serving(state_dir, at.url) as served:
            client = await served.connect()
            other = await occupy(served, at) if row.alone is False else None
            body = {"model": MODEL, **({"stream": row.stream} if said_how(row) else {})}
            await client.ask("POST", row.path, JSON, body=orjson.dumps(body))
            arrived = await at.next()
            if row.alone:
                name = served.proxy.engines.all[0].name
                assert await served.proxy.engines.wait_for_scrapes(name, PATIENCE_S)
                at.looks["/metrics"] = page(gained)
            request_id = await answer(served, arrived, client, played, *fields)
            record = await served.newest()
            assert record["id"] == request_id
            assert record["upstream"]["kind"] == kind
            if other is not None:
                other.close()
            return record, next(c for c in served.cases if _id(c) == request_id).timeline


def _id(case: Case) -> str:
    return case.timeline.request_id


def said_how(row: Row) -> bool:
    """Whether the request says if it is to be streamed: Ollama's own API streams unasked."""
    return not (row.stream and row.path.startswith("/api/"))


async def occupy(served: Served, engine: Upstream) -> Client:
    """Let another request be at the engine."""
    other = await served.connect()
    await other.chat()
    await engine.next()
    return other


async def answer(
    served: Served, arrived: Arrival, client: Client, played: Played, *fields: str
) -> str | None:
    """Play a reply, each event only when the one before has been seen; return the request's ID."""
    await arrived.body()
    exchange = list(served.proxy.observer._live.values())[-1]
    if played.content_type == "application/json":
        await arrived.send(reply(played.events[0], JSON, CLOSE, *fields))
        arrived.close()
        head, _ = await client.reply()
        return head.get("slowtok-id")
    await arrived.send(chunked_head(f"Content-Type: {played.content_type}", CLOSE, *fields))
    head = await client.head()
    for event in played.events:
        before = exchange.last_chunk_at_s
        await arrived.send(chunk(event))
        await until(lambda before=before: exchange.last_chunk_at_s != before)  # type: ignore[misc]
    await arrived.send(LAST_CHUNK)
    arrived.close()
    while await client.chunk():
        pass
    return head.get("slowtok-id")


def count_told(cell: str, said: Any) -> float | None:
    """Return the tokens that a cell speaks of."""
    if cell == ABSENT:
        return None
    return GAINED_CACHED_TOKENS if cell == "counters" else fields(cell, said)


def check_time(column: str, cell: str, told: Mapping[str, Any], said: Any, seen: Timeline) -> None:
    found = told.get(TIMES[column])
    if cell == ABSENT:
        assert found is None, column
    else:
        expected = time_ms(cell, column, said, seen)
        assert found == pytest.approx(expected, abs=0.011), (column, cell)


def check_ended(cell: str, ended: str, said: list[Any]) -> None:
    if cell == ABSENT:
        assert ended == "complete"
    else:
        names = cell.replace("`", "").split(", else ")
        reason = next(r for name in names if isinstance(r := field(name, said), str))
        assert ended == origins.WORDS.get(reason, reason)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("alone", [True, None])
async def test_compressed_replies_are_measured_from_head_and_counters(
    stream: bool, alone: bool | None, tmp_path: Path
) -> None:
    row = Row("/v1/chat/completions", "vLLM", alone, stream, {}, True)
    plain = play(row.path, row.engine, stream=stream)
    packed = gzip.compress(b"".join(plain.events))
    played = Played(content_type=plain.content_type, events=(packed,), recorded=False)

    record, _ = await drive(row, played, tmp_path, "Content-Encoding: gzip")

    timing = record["timing"]
    assert "tokens" not in record
    assert "ttft_ms" not in timing
    assert timing["total_ms"] > 0
    told = (timing.get("source"), timing.get("prefill_ms"), timing.get("decode_ms"))
    assert told == (("metrics", 125.0, 375.0) if alone else (None, None, None))


async def test_a_wait_beside_others_that_only_the_engine_saw_is_no_prefill(tmp_path: Path) -> None:
    row = Row("/v1/chat/completions", "vLLM", True, True, {}, True)
    played = play(row.path, row.engine, stream=True)

    record, _ = await drive(row, played, tmp_path, gained=2)

    assert record["timing"]["source"] == "stream"
    assert "decode_ms" in record["timing"]
    assert "prefill_ms" not in record["timing"]


@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_each_number_comes_from_where_the_table_says(row: Row, tmp_path: Path) -> None:
    played = play(row.path, row.engine, stream=row.stream)
    record, seen = await drive(row, played, tmp_path)
    said, cells, told = played.objects, row.cells, record.get("timing", {})

    assert played.recorded == row.recorded
    assert record["stream"] == row.stream
    assert "parse_errors" not in record
    for column in TIMES:
        check_time(column, cells[column], told, said, seen)
    tokens = record.get("tokens", {})
    for column in COUNTS:
        given = count_told(cells[column], said)
        assert tokens.get(column) == given, column
    check_ended(cells["ended"], record["ended"], said)
    assert told.get("source", ABSENT) == cells["source"]
    check_rate(cells["rate"], record)


def shrunk(value: Any) -> Any:
    """The same with times of next to nothing: most of the wait is left."""
    if isinstance(value, dict):
        return {
            name: inner * 1e-6 if name.endswith(("_ms", "_duration")) else shrunk(inner)
            for name, inner in value.items()
        }
    return [shrunk(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("row", [row for row in ROWS if row.cells["queue"] == "rest"], ids=str)
async def test_the_rest_is_a_wait(row: Row, tmp_path: Path) -> None:
    """Recorded times are longer than the test, and leave nothing: here they leave something."""
    played = play(row.path, row.engine, stream=row.stream)
    quick = Played(
        content_type=played.content_type,
        events=tuple(_each(shrunk, event) for event in played.events),
        recorded=False,
    )
    record, seen = await drive(row, quick, tmp_path)

    queue_ms = record["timing"]["queue_ms"]
    assert queue_ms == pytest.approx(time_ms("rest", "queue", quick.objects, seen), abs=0.011)
    assert queue_ms > 0


def _each(change: Callable[[Any], Any], event: bytes) -> bytes:
    head, mark, text = event.rpartition(b"data: ")
    if not text.startswith(b"{"):
        return event
    end = text[len(text.rstrip()) :]
    return head + mark + orjson.dumps(change(orjson.loads(text))) + end


def check_rate(cell: str, record: Mapping[str, Any]) -> None:
    rate = record.get("rate", {}).get("decode_tps")
    if cell == ABSENT:
        assert rate is None
        return
    assert cell == "computed"
    steps, decode_ms = record["tokens"]["completion"] - 1, record["timing"]["decode_ms"]
    assert rate == pytest.approx(steps / decode_ms * 1000, rel=0.05), "both are rounded"


def test_each_api_and_engine_is_in_a_table() -> None:
    paths = {*MAKERS, *NAMES}
    assert {row.path for row in ROWS} == paths
    apis = {api.name for api in _APIS.values()}
    assert {api.name for path in paths if (api := find_api("POST", path))} == apis
    assert {row.engine for row in ROWS} == set(KINDS)
    for path in ("/v1/chat/completions", "/v1/completions"):
        engines = set(KINDS) - {"Ollama from 0.34"}
        for stream in (True, False):
            assert {r.engine for r in ROWS if (r.path, r.stream) == (path, stream)} == engines


async def test_other_paths_are_relayed_and_logged_without_a_verdict(
    engine: Upstream, proxy: Served, client: Client
) -> None:
    engine.reply = reply(b'{"choices":[{"message":{"content":"a"}}],"usage":{}}', JSON)
    await client.ask("POST", "/v1/nope", JSON, body=b'{"model":"small"}')
    head, body = await client.reply()
    record = await proxy.record(head.get("slowtok-id"))

    assert (head.status, body) == (200, b'{"choices":[{"message":{"content":"a"}}],"usage":{}}')
    assert (record["path"], record["status"], record["ended"]) == ("/v1/nope", 200, "complete")
    assert not {"verdict", "findings", "tokens", "rate"} & set(record)
    assert "source" not in record["timing"]
