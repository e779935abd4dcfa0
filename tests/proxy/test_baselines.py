"""What is learned: from healthy requests only, and kept in a private file."""

import stat
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from fakes.cases import (
    FIRING,
    case,
    healthy,
    with_device,
    with_envelope,
    with_phases,
    with_server,
    with_timeline,
    with_tokens,
)
from slowtok.detectors.case import Baseline, Case, Neighbours
from slowtok.detectors.diagnose import diagnose
from slowtok.detectors.machine import GpuFacts
from slowtok.proxy.baselines import KEEP, MAX_SETUPS, Baselines, setup_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "baselines.json"


def learn(baselines: Baselines, before: Case) -> bool:
    return baselines.learn(before, diagnose(before))


def at(tps: float) -> Case:
    return with_phases(healthy(), decode_tps=tps)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(case(ms_per_token=40), id="slow"),
        pytest.param(FIRING["queued"](), id="slow in the queue"),
        pytest.param(with_timeline(healthy(), status=500), id="unknown"),
        pytest.param(with_phases(healthy(), decode_s=0.99), id="short"),
        pytest.param(with_tokens(healthy(), completion=31), id="few tokens"),
        pytest.param(
            replace(healthy(), neighbours=Neighbours(decode_mean=0.2, decode_max=1)), id="shared"
        ),
    ],
)
def test_nothing_is_learned(before: Case, path: Path) -> None:
    baselines = Baselines(path)

    assert learn(baselines, before) is False
    assert baselines.find(before) == Baseline()


def test_median_and_noise_of_healthy_requests(path: Path) -> None:
    baselines = Baselines(path)
    for tps in (150.0, 90.0, 140.0, 160.0, 145.0, 155.0, 148.0, 152.0, 149.0, 151.0, 147.0):
        assert learn(baselines, at(tps))

    assert baselines.find(healthy()) == Baseline(count=11, decode_tps=149.0, decode_p10_tps=140.0)


def test_only_the_last_ones_count(path: Path) -> None:
    baselines = Baselines(path)
    for tps in (80.0,) * KEEP + (150.0,) * KEEP:
        learn(baselines, at(tps))

    assert baselines.find(healthy()) == Baseline(count=KEEP, decode_tps=150.0, decode_p10_tps=150.0)


@pytest.mark.parametrize(
    "other",
    [
        with_server(healthy(), version="b2"),
        with_server(healthy(), kv_type_k="q8_0"),
        with_server(healthy(), speculative=True),
        with_envelope(healthy(), context_tokens=1024),
        with_device(healthy(), gpus=(GpuFacts(index=0, uuid="GPU-1"),)),
        replace(healthy(), model=replace(healthy().model, digest="abc")),
    ],
)
def test_each_setup_has_its_own(other: Case, path: Path) -> None:
    baselines = Baselines(path)
    learn(baselines, healthy())

    assert setup_of(other) != setup_of(healthy())
    assert baselines.find(other) == Baseline()


@pytest.mark.parametrize(
    ("context_tokens", "bucket"),
    [(None, "?"), (0, "0-1k"), (1023, "0-1k"), (1024, "1k-2k"), (70_000, "64k-128k")],
)
def test_contexts_are_put_into_buckets(context_tokens: int | None, bucket: str) -> None:
    setup = setup_of(with_envelope(healthy(), context_tokens=context_tokens))

    assert f" | ctx {bucket} | " in setup


def test_what_was_learned_outlives_the_process(path: Path) -> None:
    before = Baselines(path)
    learn(before, at(150.0))
    before.save()
    after = Baselines(path)

    assert after.find(healthy()) == before.find(healthy())
    assert (before.errors, after.errors) == (0, 0)
    assert [file.name for file in path.parent.iterdir()] == ["baselines.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="file modes are POSIX")
def test_only_the_owner_can_read_it(path: Path) -> None:
    Baselines(path).save()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b'{"a": 1}', b'{"a": ["x"]}', b'{"a": [null]}', b"\xff"]
)
def test_file_that_cannot_be_read_is_counted(content: bytes, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    baselines = Baselines(path)

    assert baselines.errors == 1
    assert baselines.summary() == []
    assert learn(baselines, healthy())


def test_setup_without_rates_is_forgotten(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"a": []}')

    assert Baselines(path).summary() == []


def test_directory_that_cannot_be_made_is_counted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    baselines = Baselines(tmp_path / "file" / "baselines.json")
    baselines.save()

    assert baselines.errors == 2, "read and written"


def test_memory_is_bounded(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(orjson.dumps({f"setup {i}": [1.0] for i in range(MAX_SETUPS)}))
    baselines = Baselines(path)
    learn(baselines, healthy())

    setups = [entry["setup"] for entry in baselines.summary()]
    assert len(setups) == MAX_SETUPS
    assert setups[-1] == setup_of(healthy())
    assert "setup 0" not in setups


def test_summary_for_people(path: Path) -> None:
    baselines = Baselines(path)
    learn(baselines, at(150.126))

    assert baselines.summary() == [{"setup": setup_of(healthy()), "count": 1, "median": 0.994}]
