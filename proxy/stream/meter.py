"""The meter: turns the bytes of one reply, and their arrival times, into token counts and times.

It gets each chunk after the chunk was passed to the client, reads no clock (`at_s` is passed in),
and never raises for what a server sends: unparsable events are counted.
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
    """Return the reader of a stream's framing by its `Content-Type`; None for a single document."""
    if content_type.startswith("text/event-stream"):
        return SseReader()
    if content_type.startswith("application/x-ndjson"):
        return NdjsonReader()
    return None


class Meter:
    """Counts the tokens of one reply; `first_at_s` is when the first token arrived.

    `token_events` counts the events that carried tokens, so at least as many tokens arrived. A
    reply that is a single JSON document is parsed at its end; its answer counts as one event.
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
        """Return the counts for another process, without parsers and without text."""
        reads_with = ("_read", "_reader", "_repeats", "_document")
        return {name: value for name, value in vars(self).items() if name not in reads_with}

    def feed(self, chunk: bytes, at_s: float) -> None:
        """Parse bytes that arrived from the engine at `at_s`."""
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
        """Parse what is left when the reply ended at `at_s`."""
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
        """Whether the reply has everything, with its counts, even if its last byte is missing."""
        has_all_counts = (
            self.reply.finish is not None and self.reply.tokens().completion is not None
        )
        return self.done or has_all_counts

    def reasoning_tokens(self) -> int | None:
        """Return the tokens of the model's reasoning: as reported, else by its share of the events.

        In a whole reply, by the share of its text. None if neither is known.
        """
        reported, completion = self.reply.reasoning_tokens, self.reply.tokens().completion
        if reported is not None or completion is None:
            return reported
        if (ratio := self.reply.thought_ratio) is None and self.token_events >= 2:
            ratio = self.thinking_events / self.token_events
        return None if ratio is None else round(completion * ratio) or None

    @property
    def token_at_s(self) -> tuple[float, ...]:
        """Arrival times of the reads that carried tokens, thinned beyond `MAX_STEPS`."""
        return tuple(self._steps)

    def recent_tps(self, now_s: float) -> float | None:
        """Return tokens per second over the last `RECENT_S`; it falls while nothing arrives."""
        first_s, steps = self.first_at_s, self._steps
        if first_s is None or not steps or now_s <= first_s:
            return None
        from_s = max(now_s - RECENT_S, first_s)
        recent = len(steps) - bisect_right(steps, from_s)
        return recent * (self.token_events / len(steps)) / (now_s - from_s)

    def gaps_s(self) -> list[float]:
        """Return the sorted times between reads that carried tokens (ITL)."""
        gaps = (later - earlier for earlier, later in pairwise(self._steps))
        return sorted(gap / self._stride for gap in gaps)

    def _read_chunk(self, reader: Reader, chunk: bytes) -> int:
        """Parse a chunk that is not just repeats; return how many events carried tokens.

        It is split so that its complete events, which may be repeats, are checked as one piece.
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
        """Parse complete events; return how many of them carried tokens."""
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
            payload: Any = orjson.loads(event)
            if (
                isinstance(payload, list) and payload
            ):  # llama-server's own answer to several prompts
                return sum(self._read(item, self.reply) for item in payload) > 0
            return self._read(payload, self.reply)
        except (orjson.JSONDecodeError, AttributeError, TypeError):
            self.parse_errors += 1  # not JSON, or JSON of another shape: the bytes have passed
            return False

    def _count(self, carried: int, at_s: float) -> None:
        """Record a read that carried tokens."""
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
