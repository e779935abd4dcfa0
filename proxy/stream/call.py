"""What a request asks for, read from its JSON body: model, streaming, and the prompt's print.

The prompt itself is never kept: a `PromptPrint` holds hashes of its blocks and pieces. They are
Python's own `hash`, SipHash under a key that is drawn at start and never leaves the process.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from slowtok.detectors.case import PromptPrefix
from slowtok.proxy.stream.apis import Api
from slowtok.proxy.stream.reply import text_of

FINE_BLOCK_CHARS = 16  # near the start, where a changing header hides
FINE_CHARS = 16_384
COARSE_BLOCK_CHARS = 256
MAX_PRINTED_CHARS = 2_000_000  # about 500,000 tokens; the rest of a longer prompt is not compared
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_PIECE = re.compile(r"[^\n.!?]{1,256}[\n.!?]*|[\n.!?]+")  # sentences, or 256 characters of one


@dataclass(frozen=True, slots=True)
class Span:
    """Where one message begins in the canonical prompt."""

    role: str
    begin: int


@dataclass(frozen=True, slots=True)
class PromptPrint:
    """Hashes of one prompt: of its blocks in order, and of its pieces wherever they stand.

    `pieces` maps a piece's hash to the characters that its occurrences cover together.
    """

    chars: int
    blocks: tuple[int, ...]
    pieces: Mapping[int, int]
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One generation request; `said` is its body and goes no further than the relay."""

    api: Api
    model: str | None
    stream: bool
    said: Mapping[str, Any]


def read_call(api: Api, body: bytes) -> Call | None:
    """Read a request body; None where it is not the JSON object that the API asks for."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(said, dict):
        return None
    stream = said.get("stream")
    return Call(
        api=api,
        model=text_of(said.get("model")),
        stream=stream if isinstance(stream, bool) else api.streams_by_default,
        said=said,
    )


def print_prompt(said: Mapping[str, Any]) -> PromptPrint | None:
    """Take the print of a request's prompt; None where it has none that we understand."""
    spans: list[Span] = []
    texts: list[str] = []
    begin = 0
    for role, text in _messages(said):
        spans.append(Span(role, begin))
        texts.append(text)
        begin += len(text)
    whole = "".join(texts)[:MAX_PRINTED_CHARS]
    if not whole:
        return None
    pieces = Counter[int]()
    for piece in _PIECE.findall(whole):
        pieces[hash(piece)] += len(piece)
    return PromptPrint(len(whole), tuple(_blocks(whole)), pieces, tuple(spans))


def compare(new: PromptPrint, old: PromptPrint, age_s: float) -> PromptPrefix:
    """Say how much of `new` an engine that had served `old` could have kept."""
    pairs = enumerate(zip(new.blocks, old.blocks, strict=False))
    same = next((i for i, (a, b) in pairs if a != b), min(len(new.blocks), len(old.blocks)))
    begin, length = _block_at(same)
    common = min(begin, new.chars, old.chars)
    differs = common < new.chars
    message = _message_at(new.spans, common) if differs else None
    kept = sum(size for piece, size in new.pieces.items() if piece in old.pieces)
    printed = sum(new.pieces.values())
    return PromptPrefix(
        chars=new.chars,
        common_prefix_chars=common,
        shared_ratio=kept / printed if printed else 0.0,
        first_difference=None if message is None else common - new.spans[message].begin,
        difference_message=message,
        difference_role=None if message is None else new.spans[message].role,
        granularity_chars=length,
        previous_age_s=age_s,
    )


def _messages(said: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield (role, text) in the order in which chat templates put them: tools come first."""
    if tools := said.get("tools"):
        yield "tools", _text(tools)
    if isinstance(system := said.get("system"), str | list):
        yield "system", _text(system)
    messages = said.get("messages")
    if isinstance(messages, list):
        for message in messages:
            if isinstance(message, dict):
                extra = {k: v for k, v in message.items() if k not in ("role", "content") and v}
                text = _text(message.get("content")) + (_text(extra) if extra else "")
                role = message.get("role")
                yield role if role in _ROLES else "other", text  # a role could be any text
    elif "prompt" in said:
        yield "prompt", _text(said["prompt"])


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _blocks(text: str) -> Iterable[int]:
    at = index = 0
    while at < len(text):
        begin, length = _block_at(index)
        yield hash(text[begin : begin + length])
        at, index = begin + length, index + 1


def _block_at(index: int) -> tuple[int, int]:
    """Begin and length of block `index`: fine blocks first, then coarse ones."""
    fine = FINE_CHARS // FINE_BLOCK_CHARS
    if index < fine:
        return index * FINE_BLOCK_CHARS, FINE_BLOCK_CHARS
    return FINE_CHARS + (index - fine) * COARSE_BLOCK_CHARS, COARSE_BLOCK_CHARS


def _message_at(spans: tuple[Span, ...], offset: int) -> int | None:
    return max((i for i, span in enumerate(spans) if span.begin <= offset), default=None)
