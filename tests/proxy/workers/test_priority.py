"""What observes gives way; what relays does not."""

import json
import os
import subprocess
import sys

import pytest

from slowtok.proxy.workers.priority import OBSERVER_NICENESS, ONE_CORE_NICENESS

PROGRAM = """
import json, os, subprocess, sys
from slowtok.proxy.workers.priority import Launcher, give_way

ASK = (sys.executable, "-c", "import os; print(os.getpriority(os.PRIO_PROCESS, 0))")
before = os.getpriority(os.PRIO_PROCESS, 0)
launcher = Launcher()
give_way()
launched = launcher.start(ASK, stdout=subprocess.PIPE).communicate()[0]
other = subprocess.run(ASK, stdout=subprocess.PIPE).stdout
print(json.dumps([before, os.getpriority(os.PRIO_PROCESS, 0), int(launched), int(other)]))
"""


pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="niceness is a thread's own on Linux alone"
)


def told(first: str = "") -> list[int]:
    """Niceness before, own niceness, that of what is launched and of what is merely started."""
    ran = subprocess.run(
        (sys.executable, "-c", first + PROGRAM), stdout=subprocess.PIPE, check=True
    )
    numbers: list[int] = json.loads(ran.stdout)
    return numbers


def test_what_is_launched_keeps_the_first_priority() -> None:
    before, own, launched, other = told()

    cores = len(os.sched_getaffinity(0))
    niceness = OBSERVER_NICENESS if cores > 1 else ONE_CORE_NICENESS
    assert own == other == min(before + niceness, 19)
    assert launched == before


def test_on_one_core_all_else_goes_first() -> None:
    before, own, _, _ = told("import os\nos.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n")

    assert own == min(before + ONE_CORE_NICENESS, 19)
