"""What slowtok costs, against asking the engine directly and against a relay that looks at nothing.

    PYTHONPATH=tests python -m bench [--quick] [--rounds N]

All ways take turns in one run, on one machine: ratios are what counts, microseconds depend on the
machine and on what else it does. A full run writes docs/performance.md.
"""

import argparse
import datetime
import os
import platform
import resource
import statistics
import sys
from pathlib import Path

import psutil
from bench.goals import goals_table
from bench.own_cost import OwnCost, diagnosis_ms, resident_mib, sampling_ratio, start_s
from bench.processes import keep_to
from bench.report import Rounds, failures, table
from bench.scaling import workers_table
from bench.ways import LOAD_CORE, Way, all_ways, running_engine
from bench.workloads import many_open, settle, workloads

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
OPEN_STREAMS = 1000
INTRO = """# Performance

What slowtok costs, with everything on that it does: times, counts, samples, a diagnosis for every \
request. Written by `make bench`; do not edit.

Measured on {date}: {machine}. {rounds} rounds in which all ways took turns, medians; in brackets \
the lowest and the highest ratio of a round. Each relay had a core to itself, \
the mock engine and the client shared another. Latency is one way: from the engine's write to the \
client's read, for each token. CPU is that of all processes of a relay, slowtok's sampling among \
them.

"Naive" is aiohttp's server and client on uvloop, forty lines, with nothing looked at \
(`bench/naive.py`): what a relay in Python must cost. The engine (`bench/engine.py`) writes each \
token by itself, about 290 bytes, as llama-server does. Read ratios, not microseconds: the machine \
did other work, too.
"""

GOALS = """## Goals

What slowtok wants to cost at most, and what it cost in this run."""


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute, writes no page")
    parser.add_argument("--rounds", type=int, help="5, or 1 with --quick")
    asked = parser.parse_args()
    rounds = asked.rounds or (1 if asked.quick else 5)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8 * OPEN_STREAMS)), hard))
    with running_engine() as engine:
        starts = start_s(engine, 1 if asked.quick else 5)
        with all_ways(engine) as ways:
            keep_to(LOAD_CORE)
            resident = resident_mib(next(way for way in ways if way.name == "slowtok"))
            found = measure(ways, rounds, quick=asked.quick)
        scaling = workers_table(engine, rounds)
    own = OwnCost(
        start_s=statistics.median(starts),
        resident_mib=resident[0],
        all_resident_mib=resident[1],
        diagnosis_ms=diagnosis_ms(20),
        sampling_ratio={} if asked.quick else sampling_ratio(5.0),
    )
    goals = goals_table(found, own)
    text = "\n".join([*table(found), "", *scaling, "", *own.table(), "", GOALS, "", *goals, ""])
    print(text)
    if failed := failures(found):
        raise SystemExit(f"{failed} replies failed: these figures mean nothing")
    if not asked.quick:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        intro = INTRO.format(date=date, machine=machine(), rounds=rounds)
        PAGE.write_text(f"{intro}\n{text}", encoding="utf-8")


def measure(ways: list[Way], rounds: int, *, quick: bool) -> Rounds:
    """Put every load on every way, all of them in turn, `rounds` times."""
    found: Rounds = {}
    if not quick:
        for way in ways:  # once: what was taken is not given back
            load = f"{OPEN_STREAMS:,} open streams"
            found[load, way.name] = [many_open(way, streams=OPEN_STREAMS)]
            settle(way)
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        for work in workloads(quick=quick):
            for way in ways:
                found.setdefault((work.name, way.name), []).append(work.measure(way))
                settle(way)
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
