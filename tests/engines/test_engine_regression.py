"""Two real versions of one engine, the same model: the slower one is named, and only where it is.

On CPUs with AVX-512, xllamacpp 2026.4.8672 is twice as fast as 2026.10.11549 where flash attention
reads a long context: its build uses AVX-512, the newer one stops at AVX2.
"""

import os
import statistics
import sys
from pathlib import Path

import pytest

from fakes.engine import real_engine
from fakes.running import Answer, RunningProxy, chat, keep_ram_bandwidth, running_proxy

OLD_PYTHON = os.environ.get("TEST_OLD_ENGINE")
WHY_NOT = (
    "TEST_OLD_ENGINE does not name a Python with another xllamacpp (CONTRIBUTING.md says how to "
    "get one)"
)
ENGINE = Path(__file__).parents[1] / "fakes" / "numbered_engine.py"
LONG = " ".join(f"word {number * 7919 % 9973}" for number in range(500))  # 3,000 tokens
OF_OTHERS = {"host-contention", "cpu-quota"}
HEALTHY, TRIES = 3, 30
MAX_RATIO = 0.75  # of what three healthy requests gave: `learned_low_tps`

pytestmark = [
    pytest.mark.engine,
    pytest.mark.engine_speed,
    pytest.mark.long,
    pytest.mark.skipif(OLD_PYTHON is None, reason=WHY_NOT),
]


def undisturbed(proxy: RunningProxy, count: int) -> list[Answer]:
    """Ask until `count` requests had a core to themselves; the first one reads the prompt."""
    proxy.ask(chat(LONG, tokens=1))
    found: list[Answer] = []
    for _ in range(TRIES):
        answer = proxy.ask(chat(LONG, tokens=64))
        if not OF_OTHERS.intersection(answer.causes):
            found.append(answer)
        if len(found) == count:
            return found
    pytest.skip("other programs use the cores all the time")


def test_the_slower_of_two_versions_is_named(tmp_path: Path, ram_bytes_per_s: float) -> None:
    import xllamacpp  # noqa: PLC0415 - the newer version, and the tests of other engines need none

    assert OLD_PYTHON is not None
    keep_ram_bandwidth(tmp_path, ram_bytes_per_s)
    asked = {}
    for python, count in ((OLD_PYTHON, HEALTHY), (sys.executable, 1)):
        with (
            real_engine(
                threads=1, slots=1, context=8192, metrics=False, program=[python, str(ENGINE)]
            ) as engine,
            running_proxy(tmp_path, engine.url) as proxy,
        ):
            asked[python] = undisturbed(proxy, count)
    old, [new] = asked.values()
    builds = [answer.record["upstream"]["version"] for answer in (old[0], new)]
    old_tps = statistics.median(answer.record["rate"]["decode_tps"] for answer in old)
    ratio = new.record["rate"]["decode_tps"] / old_tps

    assert builds[1] == f"b{xllamacpp.__version__.rpartition('.')[2]}" != builds[0]
    assert [answer.record["verdict"] for answer in old] == ["normal"] * HEALTHY
    if ratio > MAX_RATIO:
        assert "engine-regression" not in new.causes, ratio
    else:
        assert new.causes[0] == "engine-regression", ratio
        assert builds[0] in new.record["findings"][0]["remedy"]
