"""Cases recorded in front of a real llama-server: private, and judged the same when replayed."""

import stat
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from fakes.commands import run
from fakes.engine import real_engine
from fakes.running import RunningProxy, keep_ram_bandwidth, running_proxy

pytestmark = pytest.mark.engine

MARKS = {  # each in its own place, so that a leak says where it came from
    "system": "plum-in-the-system-message",
    "prompt": "pear-in-the-prompt",
    "tool": "kiwi_in_the_tool",
    "key": "fig-in-the-key",
    "caller": "../../lime-in-the-request-id",
}
TOOL = {
    "type": "function",
    "function": {
        "name": MARKS["tool"],
        "description": MARKS["tool"],
        "parameters": {"type": "object", "properties": {MARKS["tool"]: {"type": "string"}}},
    },
}
SAID = {
    "model": "m",
    "messages": [
        {"role": "system", "content": f"Be brief, {MARKS['system']}."},
        {"role": "user", "content": f"Write on and on about {MARKS['prompt']}."},
    ],
    "max_tokens": 200,
    "temperature": 0,
    "ignore_eos": True,
}
FIELDS = {"Authorization": f"Bearer {MARKS['key']}", "X-Request-Id": MARKS["caller"]}


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a proxy recorded: its directory, and the records and answers of the requests."""

    directory: Path
    records: dict[str, dict[str, Any]]
    answers: list[str]


def ask(proxy: RunningProxy, **more: Any) -> tuple[str, str]:
    """Send one request; return its ID and the words of the answer."""
    url = f"{proxy.url}/v1/chat/completions"
    reply = httpx.post(url, json={**SAID, **more}, headers=FIELDS, timeout=120)
    assert reply.status_code == 200, reply.text
    events = [text.removeprefix("data: ") for text in reply.text.splitlines() if text]
    chunks = [orjson.loads(text) for text in events if text.startswith("{")]
    parts = [(c["choices"] or [{}])[0] for c in chunks]
    said = [p.get("delta") or p.get("message") or {} for p in parts]
    return reply.headers["slowtok-id"], "".join(str(s.get("content") or "") for s in said)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, ram_bytes_per_s: float) -> Recorded:
    state_dir = tmp_path_factory.mktemp("state")
    directory = tmp_path_factory.mktemp("records") / "made" / "by slowtok"
    keep_ram_bandwidth(state_dir, ram_bytes_per_s)
    options = ("--record", str(directory))
    with real_engine() as engine, running_proxy(state_dir, engine.url, options=options) as proxy:
        asked = [ask(proxy, stream=True), ask(proxy), ask(proxy, tools=[TOOL], max_tokens=16)]
        records = {request_id: proxy.record(request_id) for request_id, _ in asked}
    return Recorded(directory, records, [answer for _, answer in asked])


def test_every_request_is_a_file_that_only_the_owner_can_read(recorded: Recorded) -> None:
    files = list(recorded.directory.iterdir())

    assert {path.stem for path in files} == set(recorded.records)
    assert {uuid.UUID(path.stem).version for path in files} == {7}
    assert {path.suffix for path in files} == {".json"}
    if sys.platform != "win32":
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
        assert stat.S_IMODE(recorded.directory.stat().st_mode) == 0o700


def test_no_file_holds_prompt_answer_tool_or_key(recorded: Recorded) -> None:
    text = "".join(path.read_text("utf-8") for path in recorded.directory.iterdir())
    longer = [answer for answer in recorded.answers if len(answer) > 40]

    assert [name for name, mark in MARKS.items() if mark.removeprefix("../../") in text] == []
    assert longer
    assert [answer for answer in longer if answer[:40] in text or answer[-40:] in text] == []


def test_file_holds_what_was_shown(recorded: Recorded) -> None:
    for request_id, record in recorded.records.items():
        written = orjson.loads((recorded.directory / f"{request_id}.json").read_bytes())

        assert written["recorded"]["record"] == record
        assert written["timeline"]["request_id"] == request_id
        assert written["model"]["layers"] == 30, "SmolLM2-135M"
        if record["tokens"]["completion"] == SAID["max_tokens"]:  # else it may be over too soon
            assert written["host"]


def test_replay_comes_to_the_same_verdict(recorded: Recorded) -> None:
    ended = run("replay", "--json", str(recorded.directory))
    again = {record["id"]: record for record in map(orjson.loads, ended.stdout.splitlines())}

    assert (ended.returncode, ended.stderr) == (0, "")
    assert {record["replay"]["changed"] == [] for record in again.values()} == {True}
    assert {i: {k: v for k, v in r.items() if k != "replay"} for i, r in again.items()} == (
        recorded.records
    )


def test_expecting_again_gives_what_the_proxy_expected(recorded: Recorded) -> None:
    ended = run("replay", "--json", "--expect-again", str(recorded.directory))
    again = [record["replay"] for record in map(orjson.loads, ended.stdout.splitlines())]

    assert [(r["expected_again"], r["changed"]) for r in again] == [(True, [])] * 3


def test_replay_for_people(recorded: Recorded) -> None:
    [first, *_] = sorted(recorded.records)
    whole = run("replay", str(recorded.directory))
    one = run("replay", "--expect-again", str(recorded.directory / f"{first}.json"))
    viewed = subprocess.run(
        [sys.executable, "-m", "json.tool", str(recorded.directory / f"{first}.json")],
        capture_output=True,
        check=True,
        timeout=60,
    )

    assert whole.stdout.count("(as recorded)") == 3
    assert whole.stdout.endswith("\n3 cases, 0 changed\n")
    assert first in one.stdout
    assert "\nExpected: roofline, weights " in one.stdout
    assert b'    "timeline": {' in viewed.stdout
