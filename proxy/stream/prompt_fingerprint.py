"""Fingerprints of prompts: how much of a prompt equals an earlier one, and where they differ.

The prompt itself is never kept: a `PromptFingerprint` holds hashes of its blocks and pieces. They
are Python's own `hash`, SipHash with a key that is drawn at start and never leaves the process;
`hashlib.blake2b` would take 3.3 times as long.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from slowtok.detectors.case.case import DifferenceKind, PromptParts, PromptPrefix
from slowtok.proxy.stream.prompt_text import (
    PromptMessage,
    messages_of,
    squeezed,
    tools_of,
    without_tagged,
)

# Volatile spans: places of a prompt that seem to change from call to call (times, numbers,
# identifiers). They are found by their digits. A mark says where one is and of what kind; of its
# text only a hash is kept, as of the whole prompt.

MARKED_CHARS = 65_536  # a difference further on leaves most of a prompt in the cache
MAX_MARKS = 1024  # about 130 KiB
MIN_ID_CHARS = 5  # Claude Code's cch has five (musistudio/claude-code-router#1220)

_ATTRIBUTION = "x-anthropic-billing-header"
_TOKEN = re.compile(r"\d(?:[\w:./+-]|,(?=\d))*")
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_DAYS = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
_NAMED_BEFORE = re.compile(rf"\b(?:(?:{_DAYS})\w*[,.]? )?(?:(?:{_MONTHS})\w*\.? )?(?<=[\w,.] )$")
_NAMED_AFTER = re.compile(rf"(?:st|nd|rd|th)?\.? (?:{_MONTHS})")
_TIME = re.compile(
    r"\d{4}[-/.]\d\d?[-/.]\d\d?.*"  # 2026-11-20T07:00:00Z
    r"|\d\d?[-/.]\d\d?[-/.]\d{2,4}"  # 20.11.2026
    r"|\d\d?:\d\d.*"  # 07:00:01
    r"|1[6-9]\d{8}(?:\d{3})?(?:\.\d+)?"  # seconds or milliseconds since 1970
)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*\w{0,2}")
_NAMED_CHARS = 24


class VolatileSpan(NamedTuple):
    """A place with text that may change between calls (a time, a number, an id), and its hash."""

    begin: int
    end: int
    kind: DifferenceKind
    whole: int


def find_marks(text: str) -> tuple[VolatileSpan, ...]:
    """Return the first volatile spans of a text, in order."""
    header = _attribution(text)
    marks = [] if header is None else [header]
    covered = 0
    for match in _TOKEN.finditer(text, 0, MARKED_CHARS):
        if len(marks) >= MAX_MARKS:
            break
        begin, end = match.span()
        if begin >= covered and (header is None or not header.begin <= begin < header.end):
            marks.append(_mark(text, begin, end, covered))
            covered = end
    return tuple(sorted(marks))


def kind_at(
    new: Iterable[VolatileSpan], old: Iterable[VolatileSpan], begin: int, end: int
) -> DifferenceKind | None:
    """Return the kind of volatile span that differs in a range; None if none does."""
    pairs = zip(_within(new, begin, end), _within(old, begin, end), strict=False)
    changed = next(((a, b) for a, b in pairs if a.whole != b.whole), None)
    return changed[0].kind if changed and changed[0].kind == changed[1].kind else None


def _within(marks: Iterable[VolatileSpan], begin: int, end: int) -> list[VolatileSpan]:
    return [mark for mark in marks if mark.begin < end and begin < mark.end]


def _attribution(text: str) -> VolatileSpan | None:
    begin = text.find(_ATTRIBUTION, 0, MARKED_CHARS)
    if begin < 0:
        return None
    end = text.find("\n", begin)
    return _made(text, begin, len(text) if end < 0 else end, "attribution-header")


def _mark(text: str, begin: int, end: int, after: int) -> VolatileSpan:
    """Return the volatile span of the word around the digits at `begin`."""
    while begin > after and (text[begin - 1].isalnum() or text[begin - 1] in "_-"):
        begin -= 1
    word = text[begin:end].rstrip(".:/+-")
    if _TIME.fullmatch(word):
        return _made(text, _with_names(text, begin), end, "time")
    if not _NUMBER.fullmatch(word):
        return _made(text, begin, end, "id" if len(word) >= MIN_ID_CHARS else "number")
    named = _with_names(text, begin)
    is_date = named < begin or _NAMED_AFTER.match(text, end, end + _NAMED_CHARS)
    return _made(text, named, end, "time" if is_date else "number")


def _made(text: str, begin: int, end: int, kind: DifferenceKind) -> VolatileSpan:
    return VolatileSpan(begin, end, kind, hash(text[begin:end]))


def _with_names(text: str, begin: int) -> int:
    """Return where the day and month names before `begin` start, else `begin`."""
    match = _NAMED_BEFORE.search(text[max(begin - _NAMED_CHARS, 0) : begin])
    return begin if match is None else begin - len(match.group())


FINE_BLOCK_CHARS = 16  # near the start, where a changing header hides
FINE_CHARS = 16_384
COARSE_BLOCK_CHARS = 256
MAX_PRINTED_CHARS = 2_000_000  # about 500,000 tokens; the rest of a longer prompt is not compared
MIN_MOVED_CHARS = 32  # a shorter message may well be said twice
_RESULTS = frozenset({"tool", "function"})
PRUNED_RATIO = 0.5  # of an earlier tool result's length: a shorter one was cut down. Heuristic
# Of these a request names what came before, and the engine alone has it: Responses, and Ollama's
# generate.
_KEPT_BY_ENGINE = ("previous_response_id", "conversation", "context")
_END = r"\n.!?\u3002\uff01\uff1f"  # of a sentence, also of Chinese and Japanese ones
# Sentences. Of a longer one, parts that end behind a word, chosen by its last letter: what is
# inserted in front moves the cuts of the first few parts, and not of all that follow.
_PIECE = re.compile(
    rf"""[^{_END}]{{128,255}}?[a-m0-4][ ,:;"]|[^{_END}]{{1,256}}[{_END}]*|[{_END}]+"""
)


class Span(NamedTuple):
    """Where one message begins in the canonical prompt, and the hash of all of it.

    Further hashes are of the message without whitespace, without the model's reasoning, and without
    tagged blocks; `images` are the characters that stand for images.
    """

    role: str
    begin: int
    whole: int
    squeezed: int = 0
    plain: int = 0
    untagged: int = 0
    images: int = 0


class PromptFingerprint(NamedTuple):
    """Hashes of one prompt: of its blocks in order, and of its pieces in any order.

    `pieces` maps a piece's hash to the number of characters it covers. `marks` are the volatile
    spans, `tools` the hashes of its tools in order.
    """

    chars: int
    blocks: tuple[int, ...]
    pieces: Mapping[int, int]
    spans: tuple[Span, ...]
    marks: tuple[VolatileSpan, ...]
    tools: tuple[int, ...]


def fingerprint_prompt(payload: Mapping[str, Any]) -> PromptFingerprint | None:
    """Return the fingerprint of a request's prompt; None if the prompt has an unknown form.

    `payload` is the body of a generation: embeddings leave nothing in a prompt cache.
    """
    for name in _KEPT_BY_ENGINE:
        if payload.get(name):
            return None
    spans: list[Span] = []
    texts: list[str] = []
    begin = 0
    for message in messages_of(payload):
        spans.append(_span(message, min(begin, MAX_PRINTED_CHARS)))
        texts.append(message.text)
        begin += len(message.text)
    whole = "".join(texts)[:MAX_PRINTED_CHARS]
    if not whole:
        return None
    pieces: dict[int, int] = {}
    for piece in _PIECE.findall(whole):
        which = hash(piece)
        pieces[which] = pieces.get(which, 0) + len(piece)
    tools = tuple([hash(tool) for tool in tools_of(payload)])
    return PromptFingerprint(
        len(whole), _blocks(whole), pieces, tuple(spans), find_marks(whole), tools
    )


def _span(message: PromptMessage, begin: int) -> Span:
    """Return the hashes of one message."""
    role, text, plain, images = message
    bare = squeezed(text)
    untagged = without_tagged(text)
    return Span(
        role,
        begin,
        hash((role, text)),
        hash(bare),
        hash(plain),
        hash(bare if untagged is text else squeezed(untagged)),
        images,
    )


def compare(
    new: PromptFingerprint, old: PromptFingerprint, age_s: float, others_since: int | None = None
) -> PromptPrefix:
    """Compare a prompt with an earlier one: how much of it the prompt cache could have kept."""
    begin, length = _block_at(_same(new.blocks, old.blocks))
    message: int | None = _same(new.spans, old.spans)  # the first that differs
    common = common_chars(new, old)
    if common == new.chars:
        message = None
    shared_chars = sum(map(new.pieces.__getitem__, new.pieces.keys() & old.pieces.keys()))
    prompt_chars = sum(new.pieces.values())
    kind = None if message is None else _kind(new, old, message, begin, length)
    images = sum([span.images for span in new.spans])
    return PromptPrefix(
        chars=new.chars,
        common_prefix_chars=common,
        shared_ratio=shared_chars / prompt_chars if prompt_chars else 0.0,
        first_difference=None if message is None else max(common - new.spans[message].begin, 0),
        difference_message=message,
        difference_role=None if message is None else new.spans[message].role,
        difference_kind=kind,
        granularity_chars=length,
        previous_age_s=age_s,
        previous_chars=old.chars,
        others_since=others_since,
        image_chars=images,
        common_image_chars=images
        if message is None
        else sum([span.images for span in new.spans[:message]]),
    )


def common_chars(new: PromptFingerprint, old: PromptFingerprint) -> int:
    """Return the length of the common prefix of two prompts."""
    message = _same(new.spans, old.spans)
    if message == len(new.spans):
        return new.chars
    common = min(_block_at(_same(new.blocks, old.blocks))[0], new.chars, old.chars)
    if message == len(old.spans):
        return max(common, min(old.chars, new.spans[message].begin))
    return common


def parts_of(prompt: PromptFingerprint) -> PromptParts:
    """Return the sizes of a prompt's parts in characters."""
    by_role: dict[str, int] = {}
    for number, span in enumerate(prompt.spans):
        by_role[span.role] = by_role.get(span.role, 0) + _length(prompt, number)
    last = max(
        (i for i, span in enumerate(prompt.spans) if span.role in ("user", "prompt")), default=None
    )
    return PromptParts(
        chars=prompt.chars,
        messages=len(prompt.spans),
        system_chars=sum(by_role.get(role, 0) for role in ("system", "developer")),
        tools_chars=by_role.get("tools", 0),
        last_user_chars=0 if last is None else _length(prompt, last),
        image_chars=sum(span.images for span in prompt.spans),
    )


def _same(new: Sequence[object], old: Sequence[object]) -> int:
    """Return the length of the common prefix of two sequences of hashes."""
    both = min(len(new), len(old))
    if new[:both] == old[:both]:
        return both
    same = 0
    while new[same] == old[same]:
        same += 1
    return same


def _kind(
    new: PromptFingerprint, old: PromptFingerprint, message: int, begin: int, length: int
) -> DifferenceKind | None:
    """Return the kind of the difference at a place; None if the conversation only went on."""
    if message >= len(old.spans):
        return None  # the conversation went on
    if "tools" in (new.spans[message].role, old.spans[message].role):
        return "tools-order" if sorted(new.tools) == sorted(old.tools) else "tools"
    if _moved(new, old, message):
        return "trimmed"
    if _moved(old, new, message):
        return "inserted"
    return _kind_of_message(new, old, message) or _kind_of_text(new, old, message, begin, length)


def _kind_of_message(
    new: PromptFingerprint, old: PromptFingerprint, message: int
) -> DifferenceKind | None:
    """Return how a message was changed as a whole; None if that cannot be told."""
    new_span, old_span = new.spans[message], old.spans[message]
    if new_span.role != old_span.role:
        return None
    if new_span.squeezed == old_span.squeezed:
        return "whitespace"
    if new_span.plain == old_span.plain:
        return "reasoning"
    if new_span.role in _RESULTS and _length(new, message) < PRUNED_RATIO * _length(old, message):
        return "pruned"
    return None


def _kind_of_text(
    new: PromptFingerprint, old: PromptFingerprint, message: int, begin: int, length: int
) -> DifferenceKind:
    """Return the kind of text that changed within a message."""
    if kind := kind_at(new.marks, old.marks, begin, begin + length):
        return kind
    new_span, old_span = new.spans[message], old.spans[message]
    return (
        "reminder"
        if new_span.role == old_span.role and new_span.untagged == old_span.untagged
        else "text"
    )


def _moved(prompt: PromptFingerprint, other: PromptFingerprint, message: int) -> bool:
    """Return True if `prompt` continues with a message that is further back in `other`.

    The message after the difference counts, too: a summary may replace what was left out.
    """
    places = {span.whole: i for i, span in enumerate(other.spans)}
    return any(
        places.get(prompt.spans[i].whole, -1) > i and _length(prompt, i) >= MIN_MOVED_CHARS
        for i in range(message, min(message + 2, len(prompt.spans)))
    )


def _length(prompt: PromptFingerprint, message: int) -> int:
    begins = [*(span.begin for span in prompt.spans[message : message + 2]), prompt.chars]
    return begins[1] - begins[0]


def _blocks(text: str) -> tuple[int, ...]:
    """Return the hash of each block, see `_block_at`."""
    fine = range(0, min(len(text), FINE_CHARS), FINE_BLOCK_CHARS)
    coarse = range(FINE_CHARS, len(text), COARSE_BLOCK_CHARS)
    return (
        *[hash(text[at : at + FINE_BLOCK_CHARS]) for at in fine],
        *[hash(text[at : at + COARSE_BLOCK_CHARS]) for at in coarse],
    )


def _block_at(index: int) -> tuple[int, int]:
    """Return begin and length of block `index`: first fine blocks, then coarse ones."""
    fine = FINE_CHARS // FINE_BLOCK_CHARS
    if index < fine:
        return index * FINE_BLOCK_CHARS, FINE_BLOCK_CHARS
    return FINE_CHARS + (index - fine) * COARSE_BLOCK_CHARS, COARSE_BLOCK_CHARS
