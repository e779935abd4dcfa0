"""Listening where other machines come in: never without a key or the user's word, nor silently."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from fakes.client import connect
from fakes.commands import keep_ram_bandwidth, run, started
from slowtok.config.settings import load
from slowtok.proxy.cli.commands.serve import run_serve

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="ended by a signal")

LOCAL = ("127.0.0.1:1", "127.8.9.10:1", "localhost:1", "LOCALHOST.:1", "[::1]:1")
WIDE = (
    "0.0.0.0:1",
    "[::]:1",
    "192.168.1.7:1",
    "[fe80::1]:1",
    "box.example:1",
    "localhost.example:1",
)
KEY = "kiwi-7"


@pytest.mark.parametrize("listen", LOCAL)
def test_loopback_is_local(listen: str) -> None:
    assert load({"listen": listen}, {}).is_local


@pytest.mark.parametrize("listen", WIDE)
def test_all_else_is_not(listen: str) -> None:
    assert not load({"listen": listen}, {}).is_local


def test_by_default_only_this_machine_can_reach_it() -> None:
    settings = load({}, {})

    assert settings.is_local
    assert not settings.allow_no_key


@pytest.mark.parametrize("listen", WIDE)
def test_wider_is_refused_before_anything_is_opened(listen: str, tmp_path: Path) -> None:
    settings = load({"listen": listen, "state_dir": str(tmp_path / "state")}, {})

    said = r"set a key \(SLOWTOK_API_KEY, or api_key in a --config file\), or say --allow-no-key"
    with pytest.raises(Exception, match=said):
        run_serve(settings)
    assert list(tmp_path.iterdir()) == []


def test_it_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    ended = run("--state-dir", str(tmp_path), env={"SLOWTOK_LISTEN": "0.0.0.0:0"})

    assert ended.returncode == 2
    assert ended.stderr.startswith(
        "slowtok: SLOWTOK_LISTEN = '0.0.0.0:0' (from environment): other"
    )
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "env", "said", "status"),
    [
        (
            (),
            {"SLOWTOK_API_KEY": KEY},
            "need the key, which goes over the network unencrypted",
            401,
        ),
        (
            ("--allow-no-key",),
            {},
            "need no key: they can use the engines and read the records",
            200,
        ),
        ((), {"SLOWTOK_ALLOW_NO_KEY": "true"}, "need no key", 200),
    ],
    ids=["with a key", "by argument", "by environment"],
)
async def test_with_either_it_starts_and_warns(
    arguments: tuple[str, ...], env: Mapping[str, str], said: str, status: int, tmp_path: Path
) -> None:
    keep_ram_bandwidth(tmp_path)
    options = ("--listen", "0.0.0.0:0", "--state-dir", str(tmp_path), *arguments)
    async with started("serve", *options, env=env) as running:
        address = await running.address()
        warning = await running.line()
        client = await connect(int(address.rpartition(":")[2]))
        await client.ask("GET", "/slowtok/status")
        head, _ = await client.reply()
        client.close()
        assert await running.end() == 0

    assert warning.startswith("warning   other machines can reach this address and ")
    assert said in warning
    assert head.status == status
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    [exposed] = [event for event in events if event["event"] == "exposed"]
    assert exposed["api_key"] is (status == 401)
    assert KEY not in json.dumps(events) + warning


async def test_on_loopback_it_does_not_warn(tmp_path: Path) -> None:
    keep_ram_bandwidth(tmp_path)
    async with started("serve", "--listen", "127.0.0.1:0", "--state-dir", str(tmp_path)) as running:
        await running.address()
        assert await running.end() == 0

    assert "other machines" not in "".join(running.out + running.err)
