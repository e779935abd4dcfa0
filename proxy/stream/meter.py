"""The meter: the bytes of one reply and when they came, turned into counts and times.

It is given each chunk after the chunk has gone to the client, knows no clock (`at_s` comes in),
and never raises for what a server sends: what cannot be read is counted.
"""

from array import array
from bisect import bisect_right
from itertools import pairwise
from typing import Any

import orjson

from slowtok.proxy.stream.apis import Api
from slowtok.proxy.stream.framing import NdjsonReader, SseReader
from slowtok.proxy.stream.reply import Reply
from slowtok.proxy.stream.template_match import RepeatMatcher

RECENT_S = 3.0
"""Long enough for a mean at 1 token/s, short enough to show a change. Heuristic."""

MAX_STEPS = 16_384  # 128 KiB of arrival times; a longer answer is thinned to every second one

Reader = SseReader | NdjsonReader


def make_event_reader(content_type: str) -> Reader | None:
    """Return the reader for a stream's framing, by its `Content-Type`; None for one document."""
    if content_type.startswith("text/event-stream"):
        return SseReader()
    if content_type.startswith("application/x-ndjson"):
        return NdjsonReader()
    return None


class Meter:
    """Reads one reply by its framing and dialect; `first_at_s` is when the first token came.

    `token_events` counts the events that carried tokens: at least as many tokens have come. One
    that is a single JSON document is read at its end; an answer in it counts as one token.
    """

    def __init__(self, api: Api, content_type: str) -> None:
        self.reply = Reply()
        self.parse_errors = 0
        self.token_events = 0
        self.thinking_events = 0
        self.first_at_s: float | None = None
        self.last_at_s: float | None = None
        self.done = False
        self._read = api.read
        self._reader = reader = make_event_reader(content_type)
        if reader is None:
            self._document: list[bytes] = []
        else:
            self._repeats = RepeatMatcher(reader.frame)
        self._steps = array("d")
        self._stride = 1
        self._skipped = 0

    def __getstate__(self) -> dict[str, Any]:
        """Return what was counted, for another process: it reads no more, and gets no text."""
        reads_with = ("_read", "_reader", "_repeats", "_document")
        return {name: value for name, value in vars(self).items() if name not in reads_with}

    def feed(self, chunk: bytes, at_s: float) -> None:
        """Look at bytes that arrived from the engine at `at_s`."""
        reader = self._reader
        if reader is None:
            self._document.append(chunk)
            return
        carried = 0 if reader.inside else self._repeats.count(chunk)
        if not carried:
            carried = self._read_chunk(reader, chunk)
        if carried:
            self._count(carried, at_s)

    def finish(self, at_s: float) -> None:
        """Look at what was left when the reply ended at `at_s`."""
        if self._reader is None:
            document = b"".join(self._document)
            self._document.clear()
            carried = int(not document.isspace() and self._note_event(document))
        else:
            carried = sum(map(self._note_event, self._reader.flush()))
            self.parse_errors += self._reader.dropped
        if carried:
            self._count(carried, at_s)

    @property
    def is_complete(self) -> bool:
        """Return True once the reply has said all that it had to say, its counts included."""
        said_all = self.reply.finish is not None and self.reply.tokens().completion is not None
        return self.done or said_all

    def reasoning_tokens(self) -> int | None:
        """Return how many tokens the model thought with: as told, else by its share of the events.

        Of a whole reply by the length of its texts. None where nothing tells.
        """
        told, completion = self.reply.reasoning_tokens, self.reply.tokens().completion
        if told is not None or completion is None:
            return told
        if (ratio := self.reply.thought_ratio) is None and self.token_events >= 2:
            ratio = self.thinking_events / self.token_events
        return None if ratio is None else round(completion * ratio) or None

    @property
    def token_at_s(self) -> tuple[float, ...]:
        """Arrival of each read that carried tokens, thinned beyond `MAX_STEPS`."""
        return tuple(self._steps)

    def recent_tps(self, now_s: float) -> float | None:
        """Return the rate of the last `RECENT_S`; it falls while nothing comes."""
        first_s, steps = self.first_at_s, self._steps
        if first_s is None or not steps or now_s <= first_s:
            return None
        from_s = max(now_s - RECENT_S, first_s)
        recent = len(steps) - bisect_right(steps, from_s)
        return recent * (self.token_events / len(steps)) / (now_s - from_s)

    def gaps_s(self) -> list[float]:
        """Return the times between token-bearing reads, sorted."""
        gaps = (later - earlier for earlier, later in pairwise(self._steps))
        return sorted(gap / self._stride for gap in gaps)

    def _read_chunk(self, reader: Reader, chunk: bytes) -> int:
        """Read a chunk that is more than repeats; return how many of its events carried tokens.

        It is cut so that its whole events, which may be mere repeats, are one piece.
        """
        end, is_inside = reader.frame[1], reader.inside
        if end not in chunk or (chunk.endswith(end) and not is_inside):
            return self._carried(reader.feed(chunk))
        first = chunk.index(end) + len(end) if is_inside else 0
        last = chunk.rindex(end) + len(end)
        carried = 0
        for piece in (chunk[:first], chunk[first:last], chunk[last:]):
            repeated = 0 if reader.inside else self._repeats.count(piece)
            carried += repeated or self._carried(reader.feed(piece))
        return carried

    def _carried(self, events: list[bytes]) -> int:
        """Return how many of these events carried tokens."""
        carried = 0
        for event in events:
            if self._repeats.hold(event):
                carried += 1
            elif self._note_event(event):
                carried += 1
                self._repeats.learn(event)
            else:
                self._repeats.forget()
        return carried

    def _note_event(self, event: bytes) -> bool:
        if event == b"[DONE]":
            self.done = True
            return False
        if not event:  # a comment: pings of llama-server, keep-alives of vLLM
            return False
        try:
            said: Any = orjson.loads(event)
            if isinstance(said, list) and said:  # llama-server's own answer to several prompts
                return sum(self._read(one, self.reply) for one in said) > 0
            return self._read(said, self.reply)
        except (orjson.JSONDecodeError, AttributeError, TypeError):
            self.parse_errors += 1  # not JSON, or JSON of another shape: the bytes have passed
            return False

    def _count(self, carried: int, at_s: float) -> None:
        """Take note of a read that carried tokens."""
        self.token_events += carried
        if self.reply.is_thinking:
            self.thinking_events += carried
        if self.first_at_s is None:
            self.first_at_s = at_s
        self.last_at_s = at_s
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        self._steps.append(at_s)
        if len(self._steps) >= MAX_STEPS:
            del self._steps[1::2]
            self._skipped = self._stride  # the last of them, so that the next one keeps the beat
            self._stride *= 2
