"""What observes gives way; what relays does not."""

import json
import subprocess
import sys

import pytest

from slowtok.proxy.workers.priority import OBSERVER_NICENESS

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


@pytest.mark.skipif(sys.platform != "linux", reason="niceness is a thread's own on Linux alone")
def test_what_is_launched_keeps_the_first_priority() -> None:
    told = subprocess.run((sys.executable, "-c", PROGRAM), stdout=subprocess.PIPE, check=True)
    before, own, launched, other = json.loads(told.stdout)

    assert own == other == min(before + OBSERVER_NICENESS, 19)
    assert launched == before
