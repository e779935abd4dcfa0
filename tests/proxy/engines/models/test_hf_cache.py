"""Finding a model's folder: by its path, or in a Hugging Face cache as the hub lays it out."""

from pathlib import Path

import pytest

from slowtok.proxy.engines.models.model_facts import find_folder


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
