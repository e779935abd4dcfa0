"""The loads, and what is measured under each: one function a kind of load, one row a figure."""

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench.client import Client, Heard, make_request
from bench.processes import KIB, keep_to, resident_bytes, spent_s
from bench.ways import Way

LOOK_S, IDLE_RATIO, MAX_LOOKS = 0.2, 0.2, 40
PREFILL_S = 0.002  # no engine computes a prompt in less
FEWEST_FIRST = 20  # first tokens below which their percentiles mean nothing
GAP_US = 10_000  # 100 tokens/s each
US = 1e6

CHURN = "17,000 tokens/s in 170 streams"
BURST = "64 streams begin at once"
FAST = "40,000 tokens/s in 400 streams"
ONE = "one stream, 200 tokens/s"
SHORT = "short streams, one at a time"
LONG_PROMPT = "prompts of 1 MB, one at a time"
OPEN = "1,000 open streams"
WHOLE = {
    1: "whole replies, one at a time",
    16: "whole replies, 16 at once",
    64: "whole replies, 64 at once",
}
P50, P99, CPU = "latency p50, µs", "latency p99, µs", "CPU per token, µs"
TTFT50, TTFT99 = "TTFT p50, µs", "TTFT p99, µs"
TOKENS_S, REQUESTS_S = "tokens/s", "requests/s"
CPU_REQUEST, MEMORY = "CPU per request, µs", "memory per stream, KiB"

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Workload:
    """A load with a name; `put_on` puts it on one way."""

    name: str
    put_on: Callable[[Way], Figures]

    def measure(self, way: Way) -> Figures:
        """Put the load on a way, and wait until what follows it there is over."""
        keep_to(way.client_core)
        figures = self.put_on(way)
        settle(way)
        return figures


@dataclass(slots=True)
class _Mark:
    at_s: float
    spent_s: float
    tokens: int
    firsts: int
    replies: int


class _Window:
    """What is counted between two looks."""

    def __init__(self, way: Way, from_s: float, to_s: float) -> None:
        self._processes = way.processes()
        self._marks: list[_Mark] = []
        self.looks = [(from_s, self._mark), (to_s, self._mark)]

    def _mark(self, heard: Heard) -> None:
        spent = spent_s(self._processes)
        counts = len(heard.late_s), len(heard.first_s), heard.replies
        self._marks.append(_Mark(time.monotonic(), spent, *counts))

    def ends(self) -> tuple[_Mark, _Mark]:
        """Return the first look and the last one."""
        first, last = self._marks
        return first, last


def paced(
    way: Way, *, streams: int, tokens: int, gap_us: int = GAP_US, ramp_s: float, seconds: float
) -> Figures:
    """Keep so many streams open, a new one for each that ends; look at `seconds` of it.

    Chosen so that the ramp spreads the phases evenly, and beginnings and ends too.
    """
    request = make_request(tokens=tokens, gap_us=gap_us)
    warm_s = ramp_s + 0.4
    window = _Window(way, warm_s, warm_s + seconds)
    client = Client(way.port, request, streams, tokens=tokens)
    heard = client.run(seconds=warm_s + seconds, ramp_s=ramp_s, looks=window.looks)
    first, last = window.ends()
    many = last.tokens - first.tokens
    late = heard.late_s[first.tokens : last.tokens]
    figures = {P50: _at(late, 0.5), P99: _at(late, 0.99)}
    firsts = heard.first_s[first.firsts : last.firsts]
    if len(firsts) >= FEWEST_FIRST:
        figures |= {TTFT50: _at(firsts, 0.5), TTFT99: _at(firsts, 0.99)}
    return figures | {
        CPU: (last.spent_s - first.spent_s) / many * US,
        TOKENS_S: many / (last.at_s - first.at_s),
        "failed": heard.failed,
    }


def first_token(way: Way, *, requests: int, prompt_bytes: int) -> Figures:
    """Ask for short streams one after the other; time to the first token, less the prefill's."""
    first_us = round(PREFILL_S * US)
    request = make_request(tokens=2, gap_us=1000, first_us=first_us, prompt_bytes=prompt_bytes)
    heard = Client(way.port, request, 1, tokens=2).run(requests=requests)
    return {TTFT50: _at(heard.first_s, 0.5) - PREFILL_S * US, "failed": heard.failed}


def whole(way: Way, *, at_once: int, seconds: float) -> Figures:
    """Ask for whole replies; requests per second, and the CPU of one with all that follows it."""
    processes = way.processes()
    before_s = spent_s(processes)
    window = _Window(way, 0.4, 0.4 + seconds)
    client = Client(way.port, make_request(tokens=0), at_once, tokens=0)
    heard = client.run(seconds=0.4 + seconds, looks=window.looks)
    first, last = window.ends()
    settle(way)
    return {
        REQUESTS_S: (last.replies - first.replies) / (last.at_s - first.at_s),
        CPU_REQUEST: (spent_s(processes) - before_s) / heard.replies * US,
        "failed": heard.failed,
    }


def many_open(way: Way, *, streams: int) -> Figures:
    """Hold streams open that say little; the most memory that each took, of all processes."""
    if way.pid is None:
        return {}
    processes = way.processes()
    idle_bytes = sum(resident_bytes(processes))
    held = [idle_bytes]
    looks = [(2 + i / 2, lambda _: held.append(sum(resident_bytes(processes)))) for i in range(8)]
    client = Client(way.port, make_request(tokens=6, gap_us=1_000_000), streams, tokens=6)
    heard = client.run(requests=streams, ramp_s=2.0, looks=looks)
    return {MEMORY: (max(held) - idle_bytes) / streams / KIB, "failed": heard.failed}


def warm_up(way: Way) -> Figures:
    """Have a relay do once what it will do: what is made at the first time is not measured."""
    for tokens in (50, 0):
        request = make_request(tokens=tokens, gap_us=GAP_US)
        Client(way.port, request, 32, tokens=tokens).run(requests=128)
    return {}


def workloads() -> list[Workload]:
    """Return the loads of one round; a stream of 300 tokens takes 3 s, so each begins once."""
    loads: dict[str, Callable[[Way], Figures]] = {
        CHURN: partial(paced, streams=170, tokens=300, ramp_s=1.05, seconds=3),
        BURST: partial(paced, streams=64, tokens=40, ramp_s=0.0, seconds=3),
        FAST: partial(paced, streams=400, tokens=300, ramp_s=1.53, seconds=3),
        ONE: partial(paced, streams=1, tokens=400, gap_us=5000, ramp_s=0.0, seconds=1.5),
        SHORT: partial(first_token, requests=240, prompt_bytes=200),
        LONG_PROMPT: partial(first_token, requests=24, prompt_bytes=1 << 20),
        **{name: partial(whole, at_once=many, seconds=1) for many, name in WHOLE.items()},
    }
    return [Workload(name, put_on) for name, put_on in loads.items()]


def settle(way: Way) -> None:
    """Let what follows the last replies end before the next load: diagnoses, records."""
    processes = way.processes()
    for _ in range(MAX_LOOKS if processes else 0):
        before_s = spent_s(processes)
        time.sleep(LOOK_S)
        if spent_s(processes) - before_s < IDLE_RATIO * LOOK_S:
            return


def _at(found_s: "array[float]", share: float) -> float:
    return sorted(found_s)[int(len(found_s) * share)] * US
