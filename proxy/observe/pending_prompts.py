"""Prompts that still have to be fingerprinted, after their requests have been sent."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from slowtok.proxy.runtime.work_queue import WorkQueue
from slowtok.proxy.stream.prompt_fingerprint import PromptFingerprint, fingerprint_prompt

LARGE_BYTES = 256 * 1024
"""A larger body is read in a thread: a prompt of this size takes 2 ms."""

Note = Callable[[PromptFingerprint], object]
Read = Callable[[], PromptFingerprint | None]


class PendingPrompts:
    """Fingerprints each request's prompt soon, and before the request is concluded.

    A prompt that cannot be parsed is counted in `failures`, and is not compared with earlier ones.
    """

    def __init__(self, failures: Counter[str]) -> None:
        self._failures = failures
        self._queue = WorkQueue(failures, "prompt fingerprint")  # next turn: the request goes first
        self._pending: dict[str, Callable[[], None]] = {}

    def add(self, request_id: str, payload: Mapping[str, Any], size_bytes: int, note: Note) -> None:
        """Schedule `note` to be called with the fingerprint of the payload, in the event loop."""
        read = partial(fingerprint_prompt, payload)
        begin = self._read_in_thread if size_bytes > LARGE_BYTES else self._note
        self._pending[request_id] = partial(begin, note, read)
        self._queue.add(partial(self.take, request_id))

    def take(self, request_id: str) -> None:
        """Fingerprint the prompt of one request now, if it is still pending."""
        if (begin := self._pending.pop(request_id, None)) is not None:
            begin()

    def _read_in_thread(self, note: Note, read: Read) -> None:
        def done(reading: asyncio.Future[PromptFingerprint | None]) -> None:
            if not reading.cancelled():
                self._note(note, reading.result)

        asyncio.get_running_loop().run_in_executor(None, read).add_done_callback(done)

    def _note(self, note: Note, read: Read) -> None:
        try:
            if (fingerprint := read()) is not None:
                note(fingerprint)
        except Exception:  # noqa: BLE001 - the request goes on without it
            self._failures["prompt fingerprint"] += 1
