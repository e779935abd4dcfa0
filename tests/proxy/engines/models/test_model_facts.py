import logging
import os
from pathlib import Path

import pytest

from fakes.hf_folder import small_llama, write_folder, write_weights
from slowtok.proxy.engines.models import model_facts
from slowtok.proxy.engines.models.model_facts import find_folder, read_model_facts


async def test_no_file_is_no_facts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert await read_model_facts(tmp_path / "missing.gguf", tmp_path / "kept") is None
    assert "missing.gguf" in caplog.text


async def test_a_file_that_is_no_model_is_no_facts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model")
    assert await read_model_facts(tmp_path / "x.gguf", tmp_path / "kept") is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert not (tmp_path / "kept").exists()


async def test_a_reader_that_takes_too_long_is_ended(
    model_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert await read_model_facts(model_file, tmp_path / "kept", timeout_s=0.0) is None
    assert "more than 0 s" in caplog.text


async def test_facts_are_read_once(
    model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await read_model_facts(model_file, tmp_path / "kept")
    assert first is not None
    assert (first.name, first.read_bytes, first.layers) == ("tiny", 640, 1)
    monkeypatch.setattr(model_facts, "READER", "no.such.module")
    assert await read_model_facts(model_file, tmp_path / "kept") == first
    os.utime(model_file, (1, 1))
    assert await read_model_facts(model_file, tmp_path / "kept") is None


async def test_kept_facts_of_another_shape_are_read_anew(model_file: Path, tmp_path: Path) -> None:
    first = await read_model_facts(model_file, tmp_path / "kept")
    (kept,) = (tmp_path / "kept").iterdir()
    for spoilt in (b"{}", b"[1]", b"half a li"):
        kept.write_bytes(spoilt)
        assert await read_model_facts(model_file, tmp_path / "kept") == first


async def test_a_cache_that_cannot_be_written_costs_only_a_warning(
    model_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kept").write_text("a file where the folder should be")
    facts = await read_model_facts(model_file, tmp_path / "kept")
    assert facts is not None
    assert "cannot be kept" in caplog.text


async def test_a_folder_is_read_once_and_again_when_its_weights_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, tensors = small_llama()
    folder = write_folder(tmp_path / "m", config, tensors)
    first = await read_model_facts(folder, tmp_path / "kept")
    assert first is not None
    assert (first.path, first.layers, first.quantisation) == (str(folder), 2, "BF16")
    with monkeypatch.context() as broken:
        broken.setattr(model_facts, "FOLDER_READER", "no.such.module")
        (folder / "README.md").write_text("says nothing of weights")
        assert await read_model_facts(folder, tmp_path / "kept") == first
    write_weights(folder / "more.safetensors", {"model.norm.weight": ("BF16", (64,))})
    second = await read_model_facts(folder, tmp_path / "kept")
    assert second is not None
    assert second.read_bytes == (first.read_bytes or 0) + 2 * 64


async def test_a_folder_that_is_no_model_is_no_facts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert await read_model_facts(tmp_path, tmp_path / "kept") is None
    assert "config.json" in caplog.text


def lay_out(hub: Path, name: str = "org/m", **commits: str) -> Path:
    """Write a repository of the cache: `commits` maps what a name stands for."""
    repository = hub / f"models--{name.replace('/', '--')}"
    for ref, commit in commits.items():
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / ref).write_text(commit)
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "snapshots" / commit / "config.json").write_text("{}")
    return repository / "snapshots"


@pytest.mark.parametrize("root", ["org/m", "../m", "./m", "~/m", "a/b/c", ""])
def test_nothing_is_found_where_nothing_is(root: str, tmp_path: Path) -> None:
    assert find_folder(root, {"HF_HOME": str(tmp_path)}) is None


def test_folder_by_its_path(tmp_path: Path) -> None:
    assert find_folder(str(tmp_path), {}) is None, "it has no config"
    (tmp_path / "config.json").write_text("{}")

    assert find_folder(str(tmp_path), {}) == tmp_path


@pytest.mark.parametrize(
    ("variable", "hub"),
    [
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ],
)
def test_name_in_the_cache_of_the_servers_environment(
    variable: str, hub: str, tmp_path: Path
) -> None:
    snapshots = lay_out(tmp_path / hub, main="abc", old="123")
    environment = {"HOME": "/nowhere", variable: str(tmp_path)}

    assert find_folder("org/m", environment) == snapshots / "abc"


def test_what_the_command_line_asks_for_wins(tmp_path: Path) -> None:
    lay_out(tmp_path / "hub", main="abc")
    snapshots = lay_out(tmp_path / "mine", main="def", old="123")
    environment = {"HF_HOME": str(tmp_path)}
    mine = str(tmp_path / "mine")

    assert find_folder("org/m", environment, download_dir=mine) == snapshots / "def"
    for revision in ("old", "123"):
        found = find_folder("org/m", environment, download_dir=mine, revision=revision)
        assert found == snapshots / "123"
    assert find_folder("org/m", environment, download_dir=mine, revision="none") is None


def test_the_only_snapshot_without_a_name(tmp_path: Path) -> None:
    snapshots = lay_out(tmp_path, "gpt2", pr="abc")

    assert find_folder("gpt2", {"HF_HUB_CACHE": str(tmp_path)}) == snapshots / "abc"
    lay_out(tmp_path, "gpt2", other="def")
    assert find_folder("gpt2", {"HF_HUB_CACHE": str(tmp_path)}) is None, "one of two is a guess"
