"""A model's files on this machine: where its folder is, and what they say of its geometry.

That is read once by a process of its own and then kept on disk. The key of the cache is what a
changed file changes: path, size and modification time. A model is a GGUF file or a Hugging Face
folder, which is named by its path, or by its name in the Hugging Face cache.
"""

import asyncio
import hashlib
import logging
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import orjson

from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.models import hf_config
from slowtok.proxy.engines.models.loading import AS_IN_THE_FILES, Loading
from slowtok.proxy.runtime.state_dir import replace_file

READER = "slowtok.proxy.engines.models.gguf_facts"
FOLDER_READER = "slowtok.proxy.engines.models.hf_facts"
READER_VERSION = 3  # raise when a reader counts differently, so that kept facts are read anew
READ_OF_A_FOLDER = frozenset({".json", ".safetensors"})
# 0.25 s measured for a 94 MiB file on a local disk, nearly all of it Python starting; a network
# share may take long to give a header.
READ_TIMEOUT_S = 30.0

log = logging.getLogger(__name__)


async def read_model_facts(
    path: Path,
    cache_dir: Path,
    *,
    loading: Loading = AS_IN_THE_FILES,
    timeout_s: float = READ_TIMEOUT_S,
) -> ModelFacts | None:
    """Return the facts of the model at `path`, or None, with one warning, when unreadable.

    `loading` is how the engine loads a folder; a GGUF file is served as it is.
    """
    try:
        kept_at = cache_dir / f"{await asyncio.to_thread(_key, path, loading)}.json"
    except OSError as error:
        log.warning("model file %s cannot be read: %s", path, error.strerror)
        return None
    kept = _load(kept_at)
    if kept is not None:
        return kept
    output = await _run_reader(path, loading, timeout_s)
    facts = None if output is None else _parse(output)
    if facts is not None and output is not None:
        _keep(kept_at, output)
    return facts


def _key(path: Path, loading: Loading) -> str:
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in READ_OF_A_FOLDER)
    stats = [(file.name, file.stat()) for file in files]
    sizes = "".join(f"\0{name}\0{stat.st_size}\0{stat.st_mtime_ns}" for name, stat in stats)
    asked = "" if loading == AS_IN_THE_FILES else f"\0\0{loading}"
    key = f"{READER_VERSION}\0{path.absolute()}{sizes}{asked}"
    return hashlib.sha256(key.encode()).hexdigest()


async def _run_reader(path: Path, loading: Loading, timeout_s: float) -> bytes | None:
    reader: tuple[str, ...] = (READER, str(path))
    if await asyncio.to_thread(path.is_dir):
        reader = (FOLDER_READER, str(path), orjson.dumps(loading).decode())
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *reader,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout_s):
            output, errors = await process.communicate()
    except TimeoutError:
        log.warning("reading model file %s took more than %g s", path, timeout_s)
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or ["no reason given"]
        log.warning("model file %s cannot be read: %s", path, lines[-1])
        return None
    return output


def _parse(output: bytes) -> ModelFacts | None:
    """Return facts from the reader's JSON; None when a field is not one of today's."""
    try:
        raw = orjson.loads(output)
        return ModelFacts(**{f.name: raw[f.name] for f in fields(ModelFacts)})
    except (ValueError, TypeError, KeyError):
        return None


def _load(kept_at: Path) -> ModelFacts | None:
    try:
        return _parse(kept_at.read_bytes())
    except OSError:
        return None


def _keep(kept_at: Path, output: bytes) -> None:
    try:
        replace_file(kept_at, output)
    except OSError as error:
        log.warning("facts of model files cannot be kept in %s: %s", kept_at.parent, error.strerror)


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
        return folder if (folder / hf_config.FILE_NAME).is_file() else None
    if root.count("/") > 1 or root.startswith((".", "~")):
        return None  # relative to a directory that we do not know
    hub = Path(download_dir) if download_dir else _hub(environment)
    repository = hub / f"models--{root.replace('/', '--')}"
    found = _snapshot(repository, revision)
    return found if found is not None and (found / hf_config.FILE_NAME).is_file() else None


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
