"""When the fingerprint of a prompt is taken."""

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest

from fakes.wire import until
from slowtok.proxy.observe import pending_prompts
from slowtok.proxy.observe.pending_prompts import LARGE_BYTES, PendingPrompts
from slowtok.proxy.stream.prompt_fingerprint import PromptFingerprint, fingerprint_prompt

SAID = {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}


async def test_a_prompt_is_read_soon() -> None:
    noted: list[PromptFingerprint] = []
    pending = PendingPrompts(Counter())
    pending.add("one", SAID, 100, noted.append)
    assert noted == []
    await until(lambda: noted)

    assert noted == [fingerprint_prompt(SAID)]


async def test_a_prompt_is_read_at_once_and_once_where_its_request_is_concluded() -> None:
    noted: list[str] = []
    pending = PendingPrompts(Counter())
    for name in ("one", "two"):
        pending.add(name, SAID, 100, partial(_note, noted, name))
    pending.take("two")
    pending.take("two")

    assert noted == ["two"]


async def test_a_large_prompt_is_read_in_a_thread_and_noted_in_the_loop() -> None:
    noted: list[Any] = []
    pending = PendingPrompts(Counter())
    pending.add(
        "one", SAID, LARGE_BYTES + 1, lambda _: noted.append(asyncio.current_task() is None)
    )
    pending.take("one")
    assert noted == []
    await until(lambda: noted)

    assert noted == [True]


@pytest.mark.parametrize("size_bytes", [100, LARGE_BYTES + 1])
async def test_a_prompt_that_cannot_be_read_is_counted(
    monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    def breaks(_said: object) -> None:
        raise ValueError

    monkeypatch.setattr(pending_prompts, "fingerprint_prompt", breaks)
    failures: Counter[str] = Counter()
    pending = PendingPrompts(failures)
    pending.add("one", SAID, size_bytes, lambda _: None)
    pending.take("one")
    await until(lambda: failures)

    assert failures == {"prompt fingerprint": 1}


def _note(noted: list[str], name: str, _: PromptFingerprint) -> None:
    noted.append(name)
