"""What a request asks for, read from its JSON body: model, streaming, and the prompt's print.

The prompt itself is never kept: a `PromptPrint` holds hashes of its blocks and pieces. They are
Python's own `hash`, SipHash under a key that is drawn at start and never leaves the process.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from slowtok.detectors.case import DifferenceKind, PromptPrefix
from slowtok.proxy.stream.apis import Api
from slowtok.proxy.stream.reply import text_of
from slowtok.proxy.stream.volatile import Mark, find_marks, kind_at

FINE_BLOCK_CHARS = 16  # near the start, where a changing header hides
FINE_CHARS = 16_384
COARSE_BLOCK_CHARS = 256
MAX_PRINTED_CHARS = 2_000_000  # about 500,000 tokens; the rest of a longer prompt is not compared
MIN_MOVED_CHARS = 32  # a shorter message may well be said twice
_PLAIN_MESSAGE = frozenset({"role", "content"})
_SYSTEM_FIELDS = ("system", "instructions")  # beside the messages: of Anthropic and of Responses
_HEAD_ROLES = ("system", "developer")
_ROLES = (*_HEAD_ROLES, "user", "assistant", "tool", "function")
_ROLE_OF_ITEM = {  # of Responses, which say no role
    "reasoning": "assistant",
    "function_call": "assistant",
    "function_call_output": "tool",
}
# Of these a request names what came before, and the engine alone has it: Responses, and Ollama's
# generate.
_KEPT_BY_ENGINE = ("previous_response_id", "conversation", "context")
_PIECE = re.compile(r"[^\n.!?]{1,256}[\n.!?]*|[\n.!?]+")  # sentences, or 256 characters of one


class Span(NamedTuple):
    """Where one message begins in the canonical prompt, and the hash of all of it."""

    role: str
    begin: int
    whole: int


class PromptPrint(NamedTuple):
    """Hashes of one prompt: of its blocks in order, and of its pieces wherever they stand.

    `pieces` maps a piece's hash to the characters that its occurrences cover together. `marks` are
    the places of what may change from call to call, `tools` the hashes of its tools in order.
    """

    chars: int
    blocks: tuple[int, ...]
    pieces: Mapping[int, int]
    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]
    tools: tuple[int, ...]


class Call(NamedTuple):
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
    if not isinstance(stream, bool):
        stream = api.streams_by_default
    return Call(api, text_of(said.get("model")), stream, said)


def print_prompt(said: Mapping[str, Any]) -> PromptPrint | None:
    """Take the print of a request's prompt; None where it has none that we understand.

    `said` is the body of a generation: what is to be embedded leaves nothing in a prompt cache.
    """
    for name in _KEPT_BY_ENGINE:
        if said.get(name):
            return None
    spans: list[Span] = []
    texts: list[str] = []
    begin = 0
    for role, text in _messages(said):
        spans.append(Span(role, begin, hash((role, text))))
        texts.append(text)
        begin += len(text)
    whole = "".join(texts)[:MAX_PRINTED_CHARS]
    if not whole:
        return None
    pieces: dict[int, int] = {}
    for piece in _PIECE.findall(whole):
        which = hash(piece)
        pieces[which] = pieces.get(which, 0) + len(piece)
    tools = _tools(said.get("tools"))
    return PromptPrint(len(whole), _blocks(whole), pieces, tuple(spans), find_marks(whole), tools)


def compare(
    new: PromptPrint, old: PromptPrint, age_s: float, others_since: int | None = None
) -> PromptPrefix:
    """Say how much of `new` an engine that had served `old` could have kept."""
    begin, length = _block_at(_same(new.blocks, old.blocks))
    message: int | None = _same(new.spans, old.spans)  # the first that differs
    common = new.chars if message == len(new.spans) else min(begin, new.chars, old.chars)
    if common == new.chars:
        message = None
    kept = sum(map(new.pieces.__getitem__, new.pieces.keys() & old.pieces.keys()))
    printed = sum(new.pieces.values())
    return PromptPrefix(
        chars=new.chars,
        common_prefix_chars=common,
        shared_ratio=kept / printed if printed else 0.0,
        first_difference=None if message is None else max(common - new.spans[message].begin, 0),
        difference_message=message,
        difference_role=None if message is None else new.spans[message].role,
        difference_kind=None if message is None else _kind(new, old, message, begin, length),
        granularity_chars=length,
        previous_age_s=age_s,
        others_since=others_since,
    )


def _same(new: Sequence[object], old: Sequence[object]) -> int:
    """Return how many blocks, or messages, both begin with."""
    both = min(len(new), len(old))
    if new[:both] == old[:both]:
        return both
    same = 0
    while new[same] == old[same]:
        same += 1
    return same


def _kind(
    new: PromptPrint, old: PromptPrint, message: int, begin: int, length: int
) -> DifferenceKind | None:
    """Say what differs at a place, by its form."""
    if message >= len(old.spans):
        return None  # the conversation went on
    if "tools" in (new.spans[message].role, old.spans[message].role):
        return "tools-order" if sorted(new.tools) == sorted(old.tools) else "tools"
    if _moved(new, old, message):
        return "trimmed"
    if _moved(old, new, message):
        return "inserted"
    return kind_at(new.marks, old.marks, begin, begin + length) or "text"


def _moved(one: PromptPrint, other: PromptPrint, message: int) -> bool:
    """Say whether `one` goes on with a message that stood further back in `other`.

    The message after the difference counts, too: a summary may stand for what was left out.
    """
    places = {span.whole: i for i, span in enumerate(other.spans)}
    return any(
        places.get(one.spans[i].whole, -1) > i and _length(one, i) >= MIN_MOVED_CHARS
        for i in range(message, min(message + 2, len(one.spans)))
    )


def _length(prompt: PromptPrint, message: int) -> int:
    begins = [*(span.begin for span in prompt.spans[message : message + 2]), prompt.chars]
    return begins[1] - begins[0]


def _messages(said: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (role, text) in the order of most chat templates: the system's word, tools, the rest.

    Some templates put the tools first, so that what differs in them may differ at once.
    """
    found = [
        ("system", _text(word))
        for name in _SYSTEM_FIELDS
        if isinstance(word := said.get(name), (str, list))
    ]
    tools = said.get("tools")
    for message in _given(said):
        if tools and message.get("role") not in _HEAD_ROLES:
            found.append(("tools", _text(tools)))
            tools = None
        found.append(_message(message))
    if tools:
        found.append(("tools", _text(tools)))
    if "prompt" in said and not isinstance(said.get("messages"), list):
        found.append(("prompt", _text(said["prompt"])))
    return found


def _given(said: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the messages, or what Responses have in their place: items, or one text."""
    messages = said["messages"] if "messages" in said else said.get("input")
    if isinstance(messages, str) and "messages" not in said:
        return [{"role": "user", "content": messages}]
    return [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []


def _message(message: Mapping[str, Any]) -> tuple[str, str]:
    text = _text(message.get("content"))
    if not message.keys() <= _PLAIN_MESSAGE:
        extra = {k: v for k, v in message.items() if k not in _PLAIN_MESSAGE and v}
        text += _text(extra) if extra else ""
    role = message.get("role") or _ROLE_OF_ITEM.get(str(message.get("type")))
    return (role if role in _ROLES else "other"), text  # a role could be any text


def _tools(tools: Any) -> tuple[int, ...]:
    """Return the hash of each tool, whatever the order of its members."""
    if not isinstance(tools, list):
        return ()
    return tuple([hash(orjson.dumps(tool, option=orjson.OPT_SORT_KEYS)) for tool in tools])


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _blocks(text: str) -> tuple[int, ...]:
    """Return the hash of each block, see `_block_at`."""
    fine = range(0, min(len(text), FINE_CHARS), FINE_BLOCK_CHARS)
    coarse = range(FINE_CHARS, len(text), COARSE_BLOCK_CHARS)
    return (
        *[hash(text[at : at + FINE_BLOCK_CHARS]) for at in fine],
        *[hash(text[at : at + COARSE_BLOCK_CHARS]) for at in coarse],
    )


def _block_at(index: int) -> tuple[int, int]:
    """Begin and length of block `index`: fine blocks first, then coarse ones."""
    fine = FINE_CHARS // FINE_BLOCK_CHARS
    if index < fine:
        return index * FINE_BLOCK_CHARS, FINE_BLOCK_CHARS
    return FINE_CHARS + (index - fine) * COARSE_BLOCK_CHARS, COARSE_BLOCK_CHARS
