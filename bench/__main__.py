"""What slowtok costs, against asking the engine directly and against a relay that looks at nothing.

    PYTHONPATH=tests python -m bench [--quick] [--rounds N]

All ways take turns in one run, on one machine: ratios are what counts, microseconds depend on the
machine and on what else it does. A full run takes six minutes and writes docs/performance.md.
"""

import argparse
import datetime
import os
import platform
import resource
import statistics
import sys
from functools import partial
from pathlib import Path

import psutil
from bench.goals import goals_table
from bench.own_cost import OwnCost, diagnosis_ms, record_ms, resident_mib, sampling_ratio, start_s
from bench.report import Rounds, failures, table
from bench.ways import Way, all_ways, running_engine
from bench.workloads import OPEN, Workload, many_open, warm_up, workloads

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
OPEN_STREAMS = 1000
ROUNDS = 3
INTRO = """# Performance

This page shows what slowtok costs with everything switched on: times, counts, samples, and a \
diagnosis for every request. `make bench` writes it; do not edit it.

## Goals

The table compares the most that slowtok should cost with what it cost in this run. """
LOADS = """
## All figures

Measured on {date}: {machine}. {rounds} rounds in which all ways took turns. The figures are \
medians; in brackets are the lowest and the highest ratio of a round. Each relay had a core to \
itself, with all its processes (for slowtok those that relay, observe and sample); the mock \
engine and the client shared another core. When the client asked the engine directly, it had the \
relay's core, so "more than direct" charges a relay also with the time that client and engine \
wait for each other. Latency is one way, from the engine's write to the client's read, for each \
token. TTFT is the time to the first token, less the 2 ms of a prefill where streams come one at \
a time. At 17,000 and 40,000 tokens/s streams are 300 tokens long: 57 and 133 per second end, and \
as many begin. The streams that begin at once are 40 tokens long, and begin again when they end. \
CPU and memory are those of all processes of a relay.

"Naive" is a relay of forty lines with aiohttp's server and client on uvloop that inspects \
nothing (`bench/naive.py`): it shows what a relay in Python costs at least. The engine \
(`bench/engine.py`) looks like a llama-server to slowtok, with its slots, model and metrics; it \
writes each token by itself, about 290 bytes. Compare ratios, not microseconds: the machine did \
other work, too.
"""


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, writes no page")
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS}, or 1 with --quick")
    asked = parser.parse_args()
    rounds = asked.rounds or (1 if asked.quick else ROUNDS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8 * OPEN_STREAMS)), hard))
    with running_engine() as engine:
        starts = start_s(engine, 1 if asked.quick else 5)
        record = record_ms(engine, 10)
        with all_ways(engine) as ways:
            resident = resident_mib(next(way for way in ways if way.name == "slowtok"))
            found = measure(ways, rounds, quick=asked.quick)
    own = OwnCost(
        start_s=statistics.median(starts),
        record_ms=record,
        resident_mib=resident,
        diagnosis_ms=diagnosis_ms(20),
        sampling_ratio={} if asked.quick else sampling_ratio(5.0),
    )
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    loads = LOADS.format(date=date, machine=machine(), rounds=rounds)
    goals = "\n".join(goals_table(found, own))
    text = "\n".join([INTRO + goals, loads, *table(found), "", *own.table(), ""])
    print(text)
    if failed := failures(found):
        raise SystemExit("\n".join([*failed, "these figures mean nothing"]))
    if not asked.quick:
        PAGE.write_text(text, encoding="utf-8")


def measure(ways: list[Way], rounds: int, *, quick: bool) -> Rounds:
    """Put every load on every way, all of them in turn, `rounds` times."""
    found: Rounds = {}
    for way in ways:
        Workload("", warm_up).measure(way)
    if not quick:
        held = Workload(OPEN, partial(many_open, streams=OPEN_STREAMS))
        for way in ways:  # once: what was taken is not given back
            found[OPEN, way.name] = [held.measure(way)]
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        for work in workloads():
            for way in ways:
                found.setdefault((work.name, way.name), []).append(work.measure(way))
    return found


def machine() -> str:
    """Return the class of this machine in words, and nothing that would tell which one it is."""
    gib = psutil.virtual_memory().total / 2**30
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"{platform.system()} on {platform.machine()}, {os.cpu_count()} cores, {gib:.0f} GiB, "
        f"Python {python}, shared with others"
    )


if __name__ == "__main__":
    main()
