import gc
import sys

import pytest

from slowtok.proxy.runtime.interpreter import (
    COLLECT_AFTER,
    SWITCH_S,
    collect_rarely,
    shorten_switch_interval,
)


def test_a_thread_gives_the_interpreter_back_soon() -> None:
    before_s = sys.getswitchinterval()
    try:
        shorten_switch_interval()
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    finally:
        sys.setswitchinterval(before_s)


def test_the_collector_looks_rarely_and_leaves_alone_what_is_there() -> None:
    before = gc.get_threshold()
    try:
        collect_rarely()
        assert gc.get_threshold() == COLLECT_AFTER
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
