"""Scheduling priority: the observing process yields the CPU to the processes that relay.

Both may have to share a core, and a diagnosis of 2 ms is long compared with a token. The niceness
is a trade-off between streams and whole replies. Measured with 17,000 tokens/s and 57 ends of
streams a second on one core: at a niceness of 10, 15 and 19, the 99th percentile of a token's delay
is 1.1, 0.8 and 0.2 ms above a naive relay's. With as many busy loops as there are cores, a whole
reply waits 14, 30 and 39 to 107 ms for its diagnosis, and a record comes 0.07, 0.12 and 0.25 s
after its stream.

So the observing process yields fully on a single core, on which each diagnosis delays tokens, and
less where the scheduler usually finds another core.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

OBSERVER_NICENESS = 15
ONE_CORE_NICENESS = 19


class Launcher:
    """Starts processes with the priority that this process had when the launcher was created.

    On Linux, niceness belongs to a thread, is inherited by what the thread starts, and can only be
    raised. So a thread of the launcher keeps the original one.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="launcher")
        self._thread.submit(os.getpid).result()  # the thread begins now

    def start(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Start a process; takes some milliseconds.

        Raises:
            OSError: it cannot be started.
        """

        def start() -> "subprocess.Popen[bytes]":
            return subprocess.Popen(command, **options)  # noqa: S603 - our own module

        return self._thread.submit(start).result()


def give_way() -> None:
    """Lower the priority of this thread, and of what it starts."""
    if sys.platform != "linux":
        return  # elsewhere niceness is the whole process's, the launcher's too
    niceness = ONE_CORE_NICENESS if len(os.sched_getaffinity(0)) == 1 else OBSERVER_NICENESS
    os.setpriority(os.PRIO_PROCESS, 0, min(os.getpriority(os.PRIO_PROCESS, 0) + niceness, 19))
