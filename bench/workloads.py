"""The loads, and what is measured under each: one function a kind of load, one row a figure."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench.client import Client, Heard, make_request
from bench.processes import Spent, between_s, resident_bytes, spent_s
from bench.ways import Way

WARM_S = 0.6  # streams begin spread over this, and are looked at after it
SPREAD_S = 0.4
LOOK_S, IDLE_RATIO, MOST_LOOKS = 0.2, 0.2, 20
PREFILL_S = 0.005  # no engine computes a prompt in less
US = 1e6

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Workload:
    """A load with a name; `measure` puts it on one way."""

    name: str
    measure: Callable[[Way], Figures]


@dataclass(slots=True)
class _Mark:
    spent: Spent
    tokens: int
    timed: int


def paced(way: Way, *, streams: int, rate: float, seconds: float) -> Figures:
    """Run streams at an even pace; latency and CPU of a token once all of them run."""
    gap_us = round(US * streams / rate)
    client = Client(way.port, make_request(tokens=_count(seconds, gap_us), gap_us=gap_us), streams)
    processes, marks = way.processes(), []

    def mark(heard: Heard) -> None:
        marks.append(_Mark(spent_s(processes), heard.tokens, len(heard.late_s)))

    looks = [(WARM_S, mark), (seconds - 0.1, mark)]
    heard = client.run(requests=streams, spread_s=SPREAD_S if streams > 1 else 0.0, looks=looks)
    client.close()
    first, last = marks
    late = sorted(heard.late_s[first.timed : last.timed])
    tokens = last.tokens - first.tokens
    return {
        "latency p50, µs": late[len(late) // 2] * US,
        "latency p99, µs": late[int(len(late) * 0.99)] * US,
        "CPU per token, µs": between_s(first.spent, last.spent) / tokens * US,
        "tokens/s": tokens / (seconds - 0.1 - WARM_S),
        "failed": heard.failed,
    }


def saturated(way: Way, *, streams: int, tokens: int) -> Figures:
    """Send as fast as it is taken; tokens per second of CPU."""
    client = Client(way.port, make_request(tokens=tokens), streams, timed=False)
    processes = way.processes()
    before = spent_s(processes)
    heard = client.run(requests=streams)
    used_s = between_s(before, spent_s(processes))
    client.close()
    figures = {"tokens/s": heard.tokens / heard.took_s, "failed": float(heard.failed)}
    return figures | ({"tokens per CPU second": heard.tokens / used_s} if processes else {})


def first_token(way: Way, *, requests: int, prompt_bytes: int) -> Figures:
    """Ask for short streams one after the other; time to the first token, less the prefill's."""
    request = make_request(
        tokens=2, gap_us=1, first_us=round(PREFILL_S * US), prompt_bytes=prompt_bytes
    )
    client = Client(way.port, request, 1)
    heard = client.run(requests=requests)
    client.close()
    return {
        "TTFT p50, µs": (statistics.median(heard.first_s) - PREFILL_S) * US,
        "failed": heard.failed,
    }


def whole(way: Way, *, requests: int, at_once: int) -> Figures:
    """Ask for whole replies; requests per second, and the CPU of one."""
    client = Client(way.port, make_request(tokens=0), at_once)
    processes = way.processes()
    before = spent_s(processes)
    heard = client.run(requests=requests)
    used_s = between_s(before, spent_s(processes))
    client.close()
    return {
        "requests/s": heard.replies / heard.took_s,
        "CPU per request, µs": used_s / requests * US,
        "failed": heard.failed,
    }


def many_open(way: Way, *, streams: int) -> Figures:
    """Hold streams open that say little; memory of each, in the process that relays."""
    if way.pid is None:
        return {}
    relay = way.processes()[:1]
    idle_bytes = resident_bytes(relay)
    held: list[int] = []
    client = Client(way.port, make_request(tokens=4, gap_us=1_000_000), streams)
    looks = [(2.5, lambda _: held.append(resident_bytes(relay)))]
    heard = client.run(requests=streams, spread_s=1.5, looks=looks)
    client.close()
    return {
        "memory per stream, KiB": (held[0] - idle_bytes) / streams / 1024,
        "failed": heard.failed,
    }


def workloads(*, quick: bool) -> list[Workload]:
    """Return the loads of one round; `quick` makes them shorter."""
    s, n = (1.3, 1) if quick else (2.1, 3)
    loads: list[tuple[str, Callable[[Way], Figures]]] = [
        ("6,400 tokens/s in 64 streams", partial(paced, streams=64, rate=6400, seconds=s)),
        ("17,000 tokens/s in 170 streams", partial(paced, streams=170, rate=17_000, seconds=s)),
        ("40,000 tokens/s in 400 streams", partial(paced, streams=400, rate=40_000, seconds=s)),
        ("one stream, 200 tokens/s", partial(paced, streams=1, rate=200, seconds=s)),
        ("32 streams without a pause", partial(saturated, streams=32, tokens=700 * n)),
        ("short streams, one at a time", partial(first_token, requests=80 * n, prompt_bytes=200)),
        ("prompts of 1 MB", partial(first_token, requests=8 * n, prompt_bytes=1 << 20)),
        ("whole replies, one at a time", partial(whole, requests=150 * n, at_once=1)),
        ("whole replies, 16 at once", partial(whole, requests=300 * n, at_once=16)),
    ]
    return [Workload(name, measure) for name, measure in loads]


def settle(way: Way) -> None:
    """Let what follows the last replies end before the next load: diagnoses, records."""
    processes = way.processes()
    for _ in range(MOST_LOOKS):
        before = spent_s(processes)
        time.sleep(LOOK_S)
        if between_s(before, spent_s(processes)) < IDLE_RATIO * LOOK_S:
            return


def _count(seconds: float, gap_us: int) -> int:
    return max(round(seconds * US / gap_us), 1)
