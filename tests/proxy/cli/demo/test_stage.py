"""The demo's parts: which one ended, and how."""

import signal
import sys
from typing import cast

import pytest

from slowtok.proxy.cli.demo.children import how_it_ended, run_child
from slowtok.proxy.cli.demo.client import Client
from slowtok.proxy.cli.demo.stage import DemoStage

STAYS = "import sys; sys.stdin.close(); import time; time.sleep(60)"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "ended with code 0"),
        (3, "ended with code 3"),
        (-9, "was ended by SIGKILL"),
        (-123, "was ended by signal 123"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_how_a_process_ended(code: int, said: str) -> None:
    assert how_it_ended(code) == said


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
async def test_the_part_that_ends_is_named() -> None:
    async with run_child("-c", STAYS) as engine, run_child("-c", STAYS) as proxy:
        stage = DemoStage(
            client=cast(Client, None), parts={"llama-server": engine, "slowtok": proxy}
        )
        engine.send_signal(signal.SIGKILL)

        assert await stage.until_one_ends() == "llama-server was ended by SIGKILL"
        assert proxy.returncode is None
