"""Secrets are planted wherever clients and engines put them, and then looked for everywhere."""

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.client import Client, connect
from fakes.commands import Running, run, served
from fakes.otlp import Receiver, http_receiver
from fakes.paced_engine import engine_process
from fakes.upstream import Upstream, listening
from fakes.wire import JSON, LAST_CHUNK, SSE, chunk, chunked_head, reply

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra [otel] is not here")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="ended by a signal")

PROMPT, ANSWER, KEY, REPLY_KEY = "plum-prompt", "pear-answer", "kiwi-key", "lime-reply-key"
SECRETS = (PROMPT, ANSWER, KEY, REPLY_KEY)
ENCODED = "a2l3aS1rZXk="  # KEY in base64, as Basic has it
KEYS = (
    (f"Authorization: Bearer {KEY}",),
    ("Authorization: Basic dTpraXdpLWtleQ==",),
    (f"x-api-key: {KEY}",),
    (f"api-key: {KEY}",),
    (f"Proxy-Authorization: Bearer {KEY}",),
    (f"Cookie: token={KEY}",),
    (f"X-Request-Id: {KEY}", f"User-Agent: {KEY}", f"Referer: http://localhost/{KEY}"),
    (f"tracestate: key={KEY}", f"baggage: key={KEY}"),
)
PATHS = (
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT * 20}]}),
    ("/v1/completions", {"prompt": [PROMPT] * 20}),
    ("/v1/embeddings", {"input": PROMPT}),
    ("/v1/responses", {"input": PROMPT, "instructions": PROMPT}),
    ("/v1/messages", {"system": PROMPT, "messages": [{"role": "user", "content": PROMPT}]}),
    ("/completion", {"prompt": PROMPT}),
    ("/v1/rerank", {"query": PROMPT, "documents": [PROMPT]}),
    ("/unknown", {"prompt": PROMPT}),
)
SAID = (
    f"Set-Cookie: session={REPLY_KEY}",
    f"Authorization: Bearer {REPLY_KEY}",
    f"x-api-key: {REPLY_KEY}",
    f'WWW-Authenticate: Bearer realm="{REPLY_KEY}"',
    f"X-Request-Id: {REPLY_KEY}",
)
CHUNK = {"choices": [{"delta": {"content": ANSWER, "reasoning_content": ANSWER}}]}
WHOLE = {"choices": [{"message": {"content": ANSWER}, "finish_reason": "stop"}], "content": ANSWER}
LOADED = {
    "model": "small",
    "message": {"role": "assistant", "content": ANSWER},
    "done": True,
    "load_duration": 5_000_000_000,
    "prompt_eval_count": 30,
    "prompt_eval_duration": 1_000_000_000,
    "eval_count": 100,
    "eval_duration": 4_000_000_000,
}
ERROR = {"error": {"message": f"cannot parse {PROMPT} with {KEY}", "code": 400}}


def replies() -> Iterator[bytes]:
    """Good ones, errors that quote the prompt, and broken ones that hold the answer."""
    event = f"data: {json.dumps(CHUNK)}\n\n".encode()
    yield reply(json.dumps(WHOLE).encode(), JSON, *SAID)
    yield chunked_head(SSE, *SAID) + chunk(event * 3) + chunk(b"data: [DONE]\n\n") + LAST_CHUNK
    yield reply(json.dumps(ERROR).encode(), JSON, *SAID, status="400 Bad Request")
    yield reply(f"{ANSWER} in text".encode(), *SAID, status=f"500 {ANSWER}")
    yield chunked_head(SSE, *SAID) + chunk(event) + b"zz\r\n"
    yield f"HTTP/1.1 200 {ANSWER}\r\nX-{ANSWER} evil\r\n\r\n".encode()


async def ask_everything(port: int, engine: Upstream) -> list[str]:
    """Ask with each key, on each path, with each reply, in turn; return the requests' IDs."""
    ids = []
    answers = list(replies())
    engine.reply = reply(json.dumps(LOADED).encode(), JSON, *SAID)  # loads are remembered in SQLite
    client = await connect(port)
    await client.chat(*KEYS[0], target="/api/chat", stream=False, messages=[{"content": PROMPT}])
    ids.append((await client.head()).get("slowtok-id") or "")
    client.close()
    for turn in range(len(KEYS) * len(answers)):
        path, said = PATHS[turn % len(PATHS)]
        engine.reply = answers[turn % len(answers)]
        body = json.dumps({"model": "small", "stream": bool(turn % 2), "user": PROMPT, **said})
        client = await connect(port)
        target = f"{path}?key={KEY}&api_key={KEY}&prompt={PROMPT}"
        await client.ask("POST", target, JSON, *KEYS[turn % len(KEYS)], body=body.encode())
        ids.append((await client.head()).get("slowtok-id") or "")
        client.close()
    return ids


async def own(client: Client, target: str) -> str:
    await client.ask("GET", target)
    head, body = await client.reply()
    return head.raw.decode() + body.decode()


async def shown_by(port: int, ids: list[str]) -> dict[str, str]:
    """Everything that a running slowtok answers about what it has seen."""
    client = await connect(port)
    shown = {}
    for request_id in ids:
        for page in (f"requests/{request_id}", f"requests/{request_id}/samples"):
            shown[page] = await own(client, f"/slowtok/{page}")
    for page in ("", "requests", "status", "metrics", "health", "nothing"):
        shown[page] = await own(client, f"/slowtok/{page}?key={KEY}")
    refused = ("Host: example.com", f"Authorization: Bearer {KEY}", "Origin: https://example.com")
    for field in refused:
        await client.ask("POST", f"/v1/models?key={KEY}", refused[1], field, body=PROMPT.encode())
        shown[f"refused {field}"] = (await client.reply())[0].raw.decode()
    client.close()
    return shown


async def events_of(port: int) -> Client:
    client = await connect(port)
    await client.ask("GET", "/slowtok/events")
    await client.head()
    return client


def commands(address: str, state: Path) -> dict[str, str]:
    """What the commands print."""
    here = ("--listen", address)
    asked: dict[str, tuple[str, ...]] = {
        "explain": ("explain", *here, "--state-dir", str(state)),
        "status": ("status", *here),
        "status --json": ("status", *here, "--json"),
        "top": ("top", "--once", *here),
        "tail": ("tail", "--no-follow", "-n", "1000", "--state-dir", str(state)),
        "report": ("report", "--state-dir", str(state)),
        "report html": ("report", "--format", "html", "--state-dir", str(state)),
    }
    ended = {name: run(*arguments) for name, arguments in asked.items()}
    assert {name: e.returncode for name, e in ended.items() if e.returncode} == {}
    return {name: e.stdout + e.stderr for name, e in ended.items()}


def files(*directories: Path) -> Iterator[tuple[str, str]]:
    """Names and bytes of all files: log, case files, SQLite with what it has beside it."""
    for directory in directories:
        for path in sorted(directory.rglob("*")):
            yield f"name of {path}", path.name
            if path.is_file():
                yield str(path), path.read_bytes().decode("latin-1")


def sent_to(receiver: Receiver) -> dict[str, str]:
    """What a receiver of traces and metrics got."""
    found = [str(dict(headers)) for headers in receiver.headers]
    for kept in (receiver.traces, receiver.metrics):
        while not kept.empty():
            found.append(str(kept.get_nowait()))
    return {f"OTLP {number}": text for number, text in enumerate(found)}


def spilled(shown: dict[str, str], *secrets: str) -> list[tuple[str, str]]:
    return [(name, secret) for name, text in shown.items() for secret in secrets if secret in text]


async def ended(running: Running) -> dict[str, str]:
    assert await running.end(signal.SIGTERM) == 0
    return {"standard output": "".join(running.out), "standard error": "".join(running.err)}


async def test_no_output_holds_what_was_planted(tmp_path: Path) -> None:
    state, cases = tmp_path / "state", tmp_path / "cases"
    state.mkdir()
    with http_receiver() as receiver:
        env = {"SLOWTOK_OTLP_ENDPOINT": receiver.url}
        options = ("--record", str(cases))
        async with (
            listening("ollama") as engine,
            served(state, "--upstream", engine.url, *options, env=env) as running,
        ):
            address = await running.address()
            port = int(address.rpartition(":")[2])
            listener = await events_of(port)
            ids = await ask_everything(port, engine)
            shown = await shown_by(port, [request_id for request_id in ids if request_id])
            shown |= await asyncio.to_thread(commands, address, state)
            shown |= await ended(running)
            shown["events"] = (await listener.rest()).decode()
            listener.close()
        shown |= sent_to(receiver)
    shown |= dict(files(state, cases))

    assert spilled(shown, *SECRETS, ENCODED, "dTpraXdpLWtleQ==") == []
    records = json.loads(shown["requests"].partition("\r\n\r\n")[2])
    assert len(records) == len(ids) == len(KEYS) * 6 + 1
    assert ids[0] in shown["events"]
    assert ids[0] in shown["report html"] + shown["tail"] + shown[str(state / "log.jsonl")]
    assert sum(name.startswith("OTLP") for name in shown) > 2
    assert "small" in shown[str(state / "learned.sqlite3")]
    assert len([name for name in shown if str(cases) in name]) > len(ids)


async def test_the_proxys_own_key_is_nowhere(tmp_path: Path) -> None:
    env = {"SLOWTOK_API_KEY": KEY}
    async with (
        listening("llama-server") as engine,
        served(tmp_path, "--upstream", engine.url, env=env) as running,
    ):
        engine.reply = reply(json.dumps(WHOLE).encode(), JSON)
        port = int((await running.address()).rpartition(":")[2])
        client = await connect(port)
        shown = {}
        for fields in KEYS[:4]:
            await client.chat(*fields, stream=False)
            head, _ = await client.reply()
            shown[fields[0]] = head.raw.decode()
            assert head.status == 200
            arrived = await engine.next()
            assert KEY not in arrived.head.raw.decode()
        for page in ("requests", "status", "metrics"):
            await client.ask("GET", f"/slowtok/{page}", KEYS[0][0])
            shown[page] = (await client.reply())[1].decode()
        client.close()
        shown |= await ended(running)

    assert spilled(shown | dict(files(tmp_path)), KEY) == []


@pytest.mark.skipif(sys.platform != "linux", reason="command lines of others are read from /proc")
async def test_keys_on_an_engines_command_line_are_nowhere(tmp_path: Path) -> None:
    options = ("--api-key", KEY, f"--hf-token={KEY}", "-ub", "333", "--proxy", f"http://u:{KEY}@h/")
    environment = {"HF_TOKEN": KEY, "LLAMA_API_KEY": KEY, "LLAMA_ARG_N_PARALLEL": "3"}
    cases, shown = tmp_path / "cases", {}
    async with (
        engine_process(
            "small", *options, env=environment, program=llama_server(tmp_path)
        ) as engine,
        served(tmp_path, "--upstream", engine.url, "--record", str(cases)) as running,
    ):
        address = await running.address()
        client = await connect(int(address.rpartition(":")[2]))
        shown["status"] = await status_with(client, '"micro_batch_tokens":333')
        await client.chat(stream=False)
        head, _ = await client.reply()
        shown["record"] = await own(client, f"/slowtok/requests/{head.get('slowtok-id')}")
        client.close()
        shown["doctor"] = doctor(engine.url, "--state-dir", str(tmp_path / "other"))
        shown |= await ended(running)
    shown |= dict(files(tmp_path))

    assert spilled(shown, KEY) == []
    assert any("333" in text for name, text in shown.items() if str(cases) in name), "what is none"


def llama_server(directory: Path) -> str:
    """What a program is called tells whose flags are on its command line."""
    program = directory / "llama-server"
    program.symlink_to(Path(sys.executable).resolve())
    return str(program)


async def status_with(client: Client, text: str) -> str:
    """The status, once it says so: the sampling process finds an engine's process by and by."""
    async with asyncio.timeout(20):
        for _ in range(1000):
            if text in (said := await own(client, "/slowtok/status")):
                return said
            await asyncio.sleep(0.05)
    raise AssertionError(said)


def doctor(url: str, *options: str) -> str:
    found = run("doctor", "--upstream", url, *options, "--json")
    return found.stdout + found.stderr


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        (("--upstream", f"http://user:{KEY}@127.0.0.1:1"), {}),
        (("--upstream", f"http://{KEY}@127.0.0.1:1"), {}),
        (("--upstream", f"http://127.0.0.1:1/?key={KEY}"), {}),
        ((), {"SLOWTOK_UPSTREAM": f"http://user:{KEY}@127.0.0.1:1"}),
        ((), {"SLOWTOK_OTLP_ENDPOINT": f"http://user:{KEY}@127.0.0.1:1"}),
        (("--api-key", f"{KEY} with a space"), {}),
        ((), {"SLOWTOK_API_KEY": f"{KEY}\u00e9"}),
    ],
)
def test_a_key_in_a_setting_that_is_refused_is_not_shown(
    arguments: tuple[str, ...], env: dict[str, Any], tmp_path: Path
) -> None:
    found = run("--listen", "127.0.0.1:0", "--state-dir", str(tmp_path), *arguments, env=env)

    assert found.returncode == 2
    assert found.stderr.startswith("slowtok: ")
    assert KEY not in found.stdout + found.stderr


def limits_of(pid: int) -> str:
    return Path(f"/proc/{pid}/limits").read_text("ascii")


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
async def test_a_crash_leaves_no_memory_behind(tmp_path: Path) -> None:
    """What passes is in memory: a core file would hold it."""
    async with served(tmp_path) as running:
        await running.address()
        limits = limits_of(running.process.pid)
        assert await running.end() == 0

    [line] = [line for line in limits.splitlines() if line.startswith("Max core file size")]
    assert line.split()[4] == "0"
