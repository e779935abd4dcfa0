"""The requests of the demo, each with the outcome that it should have. Pure.

Strategy: the lengths are chosen from rates measured on the machine at hand, so that a healthy
decode lasts about `DECODE_S` on a slow machine and on a fast one; the engine is told not to stop
early, at temperature 0 with a fixed seed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slowtok.detectors.analysis.phase_loss import MIN_DECODE_TOKENS
from slowtok.proxy.cli.render.console import Record, named

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

DECODE_S = 2.2
"""A decode is judged from 2 s on (detectors/analysis/phase_loss.py)."""

PREFILL_S = 2.5
MAX_PREFILL_S = 6.0
"""The agent's prompt: its recomputation has to cost over 0.5 s, and a tenth of the request."""

PROMPT_TOKENS, MAX_PROMPT_TOKENS = 1200, 4500
"""What a small agent sends; with the answers it has to fit into one slot."""

MIN_TOKENS, MAX_TOKENS = MIN_DECODE_TOKENS + 16, 1500

SHORT_TOKENS = MIN_DECODE_TOKENS + 16

NORMAL, UNEXPLAINED = "normal", "unexplained"
SHORT = (NORMAL, "unknown")  # too short to be judged unless it is clearly inside the band


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One request. `expected` are the words that fit its outcome: causes, or `normal`."""

    label: str
    path: str
    body: dict[str, Any] = field(repr=False)
    expected: tuple[str, ...] = (NORMAL,)

    @property
    def stream(self) -> bool:
        """Return True if the answer comes as a stream."""
        return bool(self.body.get("stream"))

    @property
    def tokens(self) -> int:
        """Length of the answer."""
        return int(self.body["max_tokens"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A request with the record that the proxy made of it."""

    shot: Shot
    record: Record = field(repr=False)

    @property
    def word(self) -> str:
        """The first cause of a slow request (`unexplained` without one), else the verdict."""
        if self.record.get("verdict") != "slow":
            return str(self.record.get("verdict", "unknown"))
        causes = named(self.record)
        return str(causes[0]["cause"]) if causes else UNEXPLAINED

    @property
    def as_expected(self) -> bool:
        """Return True if the proxy named what was really done to this request."""
        return self.word in self.shot.expected


@dataclass(frozen=True, slots=True, kw_only=True)
class ShotPace:
    """What this machine gives when nothing disturbs it."""

    decode_tps: float
    prefill_tps: float
    tokens_per_rule: float

    @property
    def tokens(self) -> int:
        """Answer length for `DECODE_S` of healthy decode."""
        return min(max(math.ceil(self.decode_tps * DECODE_S), MIN_TOKENS), MAX_TOKENS)

    def raised_by(self, record: Record) -> "ShotPace":
        """Return the pace with the decode rate of a faster request."""
        decode_tps = record.get("rate", {}).get("decode_tps", 0.0)
        return replace(self, decode_tps=max(self.decode_tps, decode_tps))

    @property
    def rules(self) -> int:
        """Number of rules in the agent's prompt: over 1,000 tokens where that is affordable."""
        affordable = min(self.prefill_tps * MAX_PREFILL_S, PROMPT_TOKENS)
        wanted = min(max(self.prefill_tps * PREFILL_S, affordable), MAX_PROMPT_TOKENS)
        return math.ceil(wanted / self.tokens_per_rule)


WARM_UPS, WARM_UP_RULES = 2, 12
WARM_UPS_SAID = f"  {WARM_UPS} requests to warm up; the page and the log show them, too"


def warm_up(number: int) -> Shot:
    """Return a short request that tells the machine's pace."""
    return chat("warm-up", rules(WARM_UP_RULES, first=100 * number), tokens=MIN_TOKENS)


def read_pace(warm_ups: Sequence[Record]) -> ShotPace | None:
    """Return the best that the warm-ups showed: nothing but a disturbance makes one slower.

    None where a record lacks what it takes.
    """
    rates = [record.get("rate", {}) for record in warm_ups]
    decode_tps = max((r.get("decode_tps", 0.0) for r in rates), default=0.0)
    prefill_tps = max((r.get("prefill_tps", 0.0) for r in rates), default=0.0)
    prompt_tokens = max((r.get("tokens", {}).get("prompt", 0) for r in warm_ups), default=0)
    if not (decode_tps and prefill_tps and prompt_tokens):
        return None
    return ShotPace(
        decode_tps=decode_tps,
        prefill_tps=prefill_tps,
        tokens_per_rule=prompt_tokens / WARM_UP_RULES,
    )


TOPICS = ("a lighthouse", "the tides", "an old clock", "a bakery at dawn", "the first snow")
"""One for each healthy request; the learned baseline counts from the fifth on."""


def healthy(number: int, tokens: int) -> Shot:
    """Return one of the requests with nothing wrong (from 1 on), of three kinds in turn."""
    label, topic = f"healthy {number}", TOPICS[number - 1]
    if number % 3 == 0:
        return text(label, f"A short story about {topic}.\n", tokens=tokens, stream=True)
    return chat(label, f"Tell me about {topic}.", tokens=tokens, stream=number % 3 == 1)


def starved(tokens: int) -> Shot:
    """Return the request that busy processes will slow down."""
    return chat(
        "starved CPU",
        "Tell me about a race.",
        tokens=tokens,
        stream=True,
        expected=("host-contention",),
    )


def conversation(rule_count: int, clock: str) -> tuple[Shot, ...]:
    """Return an agent's turns: two with the same long beginning, then one that begins with a time.

    The first fills the engine's prompt cache, the second shows what it is good for.
    """
    system = f"You are a careful agent.\n{rules(rule_count)}"
    said = (
        ("user", "Which folder comes first?"),
        ("assistant", "The one that the rules name first."),
        ("user", "And which one comes last?"),
        ("assistant", "The one that the rules name last."),
        ("user", "Then begin."),
    )
    return (
        chat("agent, turn 1", said[:1], system=system, stream=True, expected=SHORT),
        chat("agent, turn 2", said[:3], system=system, expected=SHORT),
        chat(
            "agent + clock",
            said,
            system=f"It is {clock}.\n{system}",
            stream=True,
            expected=("prompt-cache-miss",),
        ),
    )


def rush(tokens: int) -> tuple[Shot, ...]:
    """Return three requests for an engine with two slots: two share it, the third waits.

    Where decoding two costs hardly more than one, sharing is no loss.
    """
    either = ("batch-shared", NORMAL)
    return (
        chat("at once, 1st", "Tell me about a ferry.", tokens=tokens, stream=True, expected=either),
        chat("at once, 2nd", "Tell me about a tram.", tokens=tokens, expected=either),
        chat("at once, 3rd", "Tell me about a kite.", stream=True, expected=("queued",)),
    )


def chat(
    label: str,
    said: str | tuple[tuple[str, str], ...],
    *,
    system: str | None = None,
    tokens: int = SHORT_TOKENS,
    stream: bool = False,
    expected: tuple[str, ...] = (NORMAL,),
) -> Shot:
    """Return a chat request."""
    turns = (("user", said),) if isinstance(said, str) else said
    if system is not None:
        turns = (("system", system), *turns)
    messages = [{"role": role, "content": content} for role, content in turns]
    body = _body({"messages": messages}, tokens, stream)
    return Shot(label=label, path=CHAT, body=body, expected=expected)


def text(label: str, prompt: str, *, tokens: int, stream: bool) -> Shot:
    """Return a text completion."""
    return Shot(label=label, path=TEXT, body=_body({"prompt": prompt}, tokens, stream))


def _body(prompt: dict[str, Any], tokens: int, stream: bool) -> dict[str, Any]:
    fixed = {"temperature": 0, "seed": 1, "ignore_eos": True}
    return {**prompt, "max_tokens": tokens, "stream": stream, **fixed}


_VERBS = ("open", "rename", "compare", "archive", "sort", "copy", "measure")
_THINGS = ("invoice", "photo", "letter", "map", "recipe", "ticket", "drawing", "report", "table")
_PLACES = ("north", "harbour", "garden", "attic", "office")


def rules(count: int, first: int = 1) -> str:
    """Return `count` sentences such as agents are given, no two of them alike."""
    return "\n".join(
        f"Rule {n}: before you {_VERBS[n % 7]} a {_THINGS[n % 9]}, "
        f"look into the {_PLACES[n % 5]} folder."
        for n in range(first, first + count)
    )
