"""The Dockerfile, as far as it can be shown without a Docker engine.

Shown here: the linter is content, every copied path exists and passes .dockerignore, the wheel is
built and installed by the Dockerfile's own commands from nothing but the allowed files, and the
entry point answers the health check under the Dockerfile's own environment. Not shown: the base
image, and the download of the locked packages (`make install` does the same one).
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Template

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(sys.executable).parent
START_LIMIT_S = 20.0

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the image is Linux")


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) in order, continuation lines joined, comments dropped."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def all_of(instruction: str) -> list[str]:
    return [rest for word, rest in instructions() if word == instruction]


def environment() -> dict[str, str]:
    [env] = all_of("ENV")
    return dict(setting.split("=", 1) for setting in shlex.split(env))


def allowed_files() -> Iterator[Path]:
    """What .dockerignore lets into the build context."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines
    for name in (line[1:] for line in lines if line.startswith("!")):
        path = ROOT / name
        yield from [path] if path.is_file() else (p for p in path.rglob("*") if p.is_file())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("context")
    for path in allowed_files():
        if "__pycache__" not in path.parts:
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    return folder


@pytest.fixture(scope="module")
def installed(context: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv with slowtok's wheel, made by the Dockerfile's last build step."""
    folder = tmp_path_factory.mktemp("image")
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    # Stands for the locked packages; editable installs in there do not reach through a .pth file.
    [site] = venv.glob("lib/python*/site-packages")
    (site / "locked.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    step = all_of("RUN")[1]
    for here, there in {
        "/opt/build/bin/python": shlex.quote(sys.executable),
        "/opt/slowtok/bin/pip": shlex.join(
            [sys.executable, "-m", "pip", "--python", f"{venv}/bin/python"]
        ),
        "/tmp/wheel": shlex.quote(f"{folder}/wheel"),
    }.items():
        assert here in step
        step = step.replace(here, there)
    done = subprocess.run(
        ["/bin/sh", "-ec", step], cwd=context, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return venv


@pytest.fixture
def container(installed: Path, tmp_path: Path) -> dict[str, str]:
    """The image's environment, with its paths and its port moved to where a test may write."""
    moved = {
        "HOME": str(tmp_path),
        "SLOWTOK_STATE_DIR": str(tmp_path / "state"),
        "SLOWTOK_LISTEN": f"127.0.0.1:{free_port()}",
        "PATH": Template(environment()["PATH"]).substitute(PATH=os.defpath),
    }
    moved["PATH"] = moved["PATH"].replace("/opt/slowtok", str(installed))
    assert moved.keys() <= environment().keys()
    return environment() | moved


@contextmanager
def started(container: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    entry, command = json.loads(all_of("ENTRYPOINT")[0]), json.loads(all_of("CMD")[0])
    program = shutil.which(entry[0], path=container["PATH"])
    assert program is not None
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [program, *entry[1:], *command], env=container, stdout=output, stderr=output
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=START_LIMIT_S)


def is_healthy(container: dict[str, str]) -> bool:
    [check] = all_of("HEALTHCHECK")
    program, *arguments = json.loads(check.partition("CMD ")[2])
    path = shutil.which(program, path=container["PATH"])
    assert path is not None
    done = subprocess.run([path, *arguments], env=container, capture_output=True, check=False)
    return done.returncode == 0


def test_linter_is_content() -> None:
    done = subprocess.run(
        [TOOLS / "hadolint", "--no-color", ROOT / "Dockerfile"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_linter_finds_what_is_wrong(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python\nRUN pip install slowtok\n", encoding="utf-8")

    assert subprocess.run([TOOLS / "hadolint", bad], capture_output=True, check=False).returncode


def test_image_is_not_run_by_root() -> None:
    [user] = all_of("USER")

    assert user.partition(":")[0] not in {"root", "0", ""}
    assert instructions().index(("USER", user)) < [w for w, _ in instructions()].index("ENTRYPOINT")


def test_locked_packages_are_installed_with_hashes(context: Path) -> None:
    step = all_of("RUN")[0]
    locks = re.findall(r"--require-hashes -r (\S+)", step)

    assert step.count("pip install") == len(locks)
    assert all((context / lock).is_file() for lock in locks)


def test_wheel_is_built_and_installed_from_the_context_alone(installed: Path) -> None:
    code = "import slowtok.proxy, slowtok.detectors, slowtok.config as c; print(c.__file__)"
    done = subprocess.run(
        [installed / "bin" / "python", "-c", code], capture_output=True, text=True, check=True
    )

    assert Path(done.stdout.strip()).is_relative_to(installed)
    assert (installed / "bin" / "slowtok").is_file()


def test_health_check_fails_when_nothing_listens(container: dict[str, str]) -> None:
    assert not is_healthy(container)


def test_entry_point_answers_the_health_check(container: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "container.log"
    deadline_s = time.monotonic() + START_LIMIT_S

    with started(container, log) as process:
        while not (healthy := is_healthy(container)) and time.monotonic() < deadline_s:
            assert process.poll() is None, log.read_text(encoding="utf-8")

    assert healthy, log.read_text(encoding="utf-8")
    assert process.returncode in (0, -15)
