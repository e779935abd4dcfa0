"""Finds a model's folder on this machine: a path, or a name in the Hugging Face cache."""

from collections.abc import Mapping
from pathlib import Path

CONFIG = "config.json"


def find_folder(
    root: str,
    environment: Mapping[str, str],
    *,
    download_dir: str | None = None,
    revision: str | None = None,
) -> Path | None:
    """Return the folder that holds the config of the model `root`, or None.

    `environment` is the server's where it is known, else our own; `download_dir` and `revision`
    are what its command line asked for. Asks the file system.
    """
    folder = Path(root)
    if folder.is_absolute():
        return folder if (folder / CONFIG).is_file() else None
    if root.count("/") > 1 or root.startswith((".", "~")):
        return None  # relative to a directory that we do not know
    hub = Path(download_dir) if download_dir else _hub(environment)
    repository = hub / f"models--{root.replace('/', '--')}"
    found = _snapshot(repository, revision)
    return found if found is not None and (found / CONFIG).is_file() else None


def _hub(environment: Mapping[str, str]) -> Path:
    """Return the cache of the Hugging Face hub, by the variables in their order of precedence."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return Path(environment[name])
    if environment.get("HF_HOME"):
        return Path(environment["HF_HOME"]) / "hub"
    own = environment.get("XDG_CACHE_HOME")
    home = environment.get("HOME")
    cache = Path(own) if own else (Path(home) if home else Path.home()) / ".cache"
    return cache / "huggingface" / "hub"


def _snapshot(repository: Path, revision: str | None) -> Path | None:
    """Return the snapshot of a revision, by its commit or by what its name stands for."""
    snapshots = repository / "snapshots"
    try:
        commit = (repository / "refs" / (revision or "main")).read_text(encoding="utf-8").strip()
        return snapshots / commit
    except OSError:
        if revision is not None:
            return snapshots / revision
    try:
        found = list(snapshots.iterdir())
    except OSError:
        return None
    return found[0] if len(found) == 1 else None
