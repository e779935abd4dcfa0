"""Finds the earlier request that a prompt goes on from, by the hashes of its messages. Pure.

A client without ids sends its whole conversation with each request. So a request whose messages
begin with all messages of an earlier one continues it. Two that continue the same one are branches.
One that has lost its beginning or its middle (cut, compacted, tool results pruned) is known by what
the model or a tool said, which no other conversation has.

The order of preference matters where the same task is begun twice: the newest request that nobody
has continued yet comes before an older one that fits as well.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

from slowtok.proxy.stream.prompt_fingerprint import PromptFingerprint

How = Literal["continued", "changed", "branched", "repeated", "compacted"]
"""How a prompt goes on from an earlier one: `changed` where one message of it is not the same, a
clock in the system prompt say; `repeated` where it is the same once more."""

KEEP_REQUESTS = 512
KEEP_MESSAGES = 100_000  # of all of them, 4 MiB of hashes
MAX_LINK_AGE_S = 3600.0
"""What was asked longer ago is another run. Heuristic."""

MIN_OWN_CHARS = 16
"""A shorter answer may be given in any conversation. Heuristic."""

MAX_CHANGED_RATIO = 0.05
"""Of the length of the only message, where something in it changed. Heuristic."""

MIN_TEXT_BLOCKS = 4  # of a prompt without messages: 64 characters
_HEAD = frozenset({"system", "developer", "tools"})
_OF_THE_RUN = frozenset({"assistant", "tool", "function"})  # roles that no other run repeats
_RAW = "prompt"
_NONE: frozenset[int] = frozenset()


class Messages(NamedTuple):
    """A prompt as hashes: what stands before the conversation, and its messages with roles.

    `own` are those that the model or a tool said, unless they are short.
    """

    head: tuple[int, ...]
    roles: tuple[str, ...]
    said: tuple[int, ...]
    chars: tuple[int, ...]
    own: frozenset[int]


@dataclass(slots=True, eq=False)
class EarlierRequest:
    """One earlier request. `ended` once its client can have the reply, `failed` where it has none.

    `seen_s` is when it was last heard of, `continued` says that another has gone on from it.
    """

    request: str
    at_s: float
    prompt: Messages
    seen_s: float
    ended: bool = False
    failed: bool = False
    continued: bool = False


class Continuation(NamedTuple):
    """The earlier request that a prompt goes on from, and how."""

    link: EarlierRequest
    how: How


def message_hashes_of(fingerprint: PromptFingerprint) -> Messages:
    """Return the messages of a prompt; those of a raw text are its whole blocks."""
    spans = fingerprint.spans
    if len(spans) == 1 and spans[0].role == _RAW:
        blocks = fingerprint.blocks[:-1]
        return Messages((), (_RAW,) * len(blocks), blocks, (), _NONE)
    ends = [*[span.begin for span in spans[1:]], fingerprint.chars]
    own = [
        span.whole
        for span, end in zip(spans, ends, strict=True)
        if span.role in _OF_THE_RUN and end - span.begin >= MIN_OWN_CHARS
    ]
    talk = [span for span in spans if span.role not in _HEAD]
    return Messages(
        head=tuple([span.whole for span in spans if span.role in _HEAD]),
        roles=tuple([span.role for span in talk]),
        said=tuple([span.whole for span in talk]),
        chars=tuple([e - s.begin for s, e in zip(spans, ends, strict=True) if s.role not in _HEAD]),
        own=frozenset(own) if own else _NONE,  # an empty one takes 216 bytes, too
    )


def new_chars(fingerprint: PromptFingerprint, earlier: Messages | None) -> dict[str, int]:
    """Return how many characters of a prompt an earlier one had not, by role."""
    known = set() if earlier is None else {*earlier.said, *earlier.head}
    ends = [*[span.begin for span in fingerprint.spans[1:]], fingerprint.chars]
    found: dict[str, int] = {}
    for span, end in zip(fingerprint.spans, ends, strict=True):
        if span.whole not in known and end > span.begin:
            found[span.role] = found.get(span.role, 0) + end - span.begin
    return found


class Chain:
    """The newest requests, to find the one that a prompt goes on from.

    They are kept under hashes of which two that belong together share one (`_keys`), so that a
    prompt is compared with its own conversation and not with hundreds of others.
    """

    def __init__(self) -> None:
        self._links: deque[EarlierRequest] = deque()
        self._by_key: defaultdict[int, list[EarlierRequest]] = defaultdict(list)  # oldest first
        self._messages = 0

    def add(self, link: EarlierRequest) -> None:
        """Keep a request; the oldest go where there are too many."""
        self._links.append(link)
        self._messages += len(link.prompt.said)
        for key in _kept_under(link.prompt):
            self._by_key[key].append(link)
        while len(self._links) > KEEP_REQUESTS or (
            self._messages > KEEP_MESSAGES and len(self._links) > 1
        ):
            self._drop_oldest()

    def find(self, prompt: Messages, at_s: float) -> Continuation | None:
        """Return the request that `prompt` goes on from; None where it begins a run of its own."""
        alike: dict[EarlierRequest, None] = {}
        for key in (*_keys(prompt), hash(prompt.head)):
            alike.update(dict.fromkeys(self._by_key.get(key, ())))
        return best_of(alike, prompt, at_s)

    def _drop_oldest(self) -> None:
        oldest = self._links.popleft()
        self._messages -= len(oldest.prompt.said)
        for key in _kept_under(oldest.prompt):
            alike = self._by_key[key]
            del alike[0]
            if not alike:
                del self._by_key[key]


def _keys(prompt: Messages) -> Set[int]:
    """Return hashes of which a prompt shares one with each request that it can go on from.

    All or all but one of the earlier messages are there in their places, so that one of the first
    two is the same; or what the model or a tool said is. See `_kept_under` for the single ones.
    """
    return {*prompt.said[:2], *prompt.own}


def _kept_under(prompt: Messages) -> Set[int]:
    """Return the keys of an earlier request: that of a single message is what stood before it."""
    is_single = len(prompt.said) == 1 and prompt.head
    return _keys(prompt) | ({hash(prompt.head)} if is_single else set())


def best_of(links: Iterable[EarlierRequest], prompt: Messages, at_s: float) -> Continuation | None:
    """Return the best of all that fit: by how, then the longest, then the newest."""
    best: tuple[int, int, float] | None = None
    found: Continuation | None = None
    for link in links:
        if at_s - link.seen_s > MAX_LINK_AGE_S or link.at_s > at_s:
            continue
        how = how_of(prompt, link)
        if how is None:
            continue
        rank = (_rank(how, link), len(link.prompt.said), link.at_s)
        if best is None or rank >= best:
            best, found = rank, Continuation(link, how)
    return found


def how_of(prompt: Messages, link: EarlierRequest) -> How | None:
    """Return how a prompt goes on from an earlier request; None where it does not."""
    old = link.prompt
    if not old.said or (old.roles[0] == _RAW and len(old.said) < MIN_TEXT_BLOCKS):
        return None
    count = len(old.said)
    longer = len(prompt.said) > count
    same_head = prompt.head == old.head
    if prompt.said[:count] == old.said:
        if not longer:
            return _repeated(prompt, link) if same_head and len(prompt.said) == count else None
        if same_head:
            return "branched" if link.continued else "continued"
        alike = len(prompt.head) == len(old.head) or old.own
        return "changed" if alike or link.failed else None  # refused its tools, it goes without
    if longer and same_head and _differs_once(prompt, old):
        return "changed"
    return "compacted" if _shares_own(prompt, old) else None


def _rank(how: How, link: EarlierRequest) -> int:
    if how in ("continued", "changed"):
        return (4 if how == "continued" else 3) if link.ended and not link.continued else 2
    return {"branched": 2, "repeated": 1}.get(how, 0)


def _repeated(prompt: Messages, link: EarlierRequest) -> How | None:
    """Return True if the same prompt once more belongs to the same run.

    It does where the conversation has had an answer already, or where the earlier one failed. Two
    that begin alike are two runs: a benchmark, or the same task once more.
    """
    return "repeated" if _has_own(prompt.roles) or link.failed else None


def _has_own(roles: Sequence[str]) -> bool:
    return not _OF_THE_RUN.isdisjoint(roles)


def _differs_once(prompt: Messages, old: Messages) -> bool:
    """Return True if all of an earlier conversation is there but for one message in its place.

    Where that is all there was, it has to be about as long: a clock in it, and no other question.
    """
    count = len(old.said)
    if prompt.roles[:count] != old.roles or not prompt.head:
        return False
    if prompt.roles[count] not in _OF_THE_RUN:  # nobody has answered it
        return False
    others = [at for at in range(count) if prompt.said[at] != old.said[at]]
    if len(others) != 1:
        return False
    now, before = prompt.chars[others[0]], old.chars[others[0]]
    return count > 1 or abs(now - before) <= MAX_CHANGED_RATIO * before


def _shares_own(prompt: Messages, old: Messages) -> bool:
    """Return True if both have something that the model or a tool of one run said.

    What both have alike may be examples that stand in every prompt: something must have come since.
    """
    shared = len(prompt.own & old.own)
    return len(prompt.own) > shared and (shared >= 2 or (shared == 1 and prompt.head == old.head))
