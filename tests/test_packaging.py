"""The sdist, the wheel and the locks, built and read for real."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from email import message_from_string
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("proxy", "detectors", "config")
NOT_SHIPPED = {"ruff.toml", "__pycache__"}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DIST_INFO = f"slowtok-{PYPROJECT['project']['version']}.dist-info"
LOCKS = {path.stem: path for path in (ROOT / "requirements").glob("*.lock")}
FRAMEWORKS = ("crewai", "llama-index")  # have environments of their own


def hatchling_build(
    source: Path, into: Path, *targets: str, env: Mapping[str, str] | None = None
) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(into)]
    command += [word for target in targets for word in ("-t", target)]
    done = subprocess.run(command, cwd=source, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def only(folder: Path, pattern: str) -> Path:
    [path] = folder.glob(pattern)
    return path


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def pins(lock: Path) -> dict[str, set[str]]:
    """Name to versions; more than one where the version depends on the Python or the platform."""
    found: dict[str, set[str]] = {}
    for line in lock.read_text(encoding="utf-8").splitlines():
        name, equals, rest = line.partition("==")
        if equals and not line.startswith((" ", "#")):
            found.setdefault(canonicalize_name(name), set()).add(rest.split()[0])
    return found


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    hatchling_build(ROOT, folder, "sdist", "wheel")
    return folder


def test_wheel_holds_every_file_of_the_three_folders_and_nothing_else(dist: Path) -> None:
    shipped = {
        f"slowtok/{path.relative_to(ROOT).as_posix()}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not NOT_SHIPPED & {*path.parts}
    }

    in_wheel = names_in(only(dist, "*.whl"))

    code = {name for name in in_wheel if not name.startswith(f"{DIST_INFO}/")}
    assert code == shipped
    assert {f"slowtok/{folder}/py.typed" for folder in FOLDERS} <= code


def test_wheel_from_the_sdist_is_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "-w", str(tmp_path), str(only(dist, "*.tar.gz"))]
    subprocess.run(command, check=True)

    assert names_in(only(tmp_path, "*.whl")) == names_in(only(dist, "*.whl"))


def test_who_builds_it_again_gets_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    with tarfile.open(only(dist, "*.tar.gz")) as sdist:
        sdist.extractall(tmp_path, filter="data")
    elsewhere = only(tmp_path, "slowtok-*")
    for path in elsewhere.rglob("*"):
        os.utime(path, (1e9, 1e9))
    at_one_time = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}

    built = []
    for source, name in ((ROOT, "here"), (elsewhere, "there")):
        hatchling_build(source, tmp_path / name, "sdist", "wheel", env=at_one_time)
        built.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})

    assert len(built[0]) == 2
    assert built[0] == built[1]


def test_wheel_metadata(dist: Path) -> None:
    with zipfile.ZipFile(only(dist, "*.whl")) as archive:
        metadata = message_from_string(archive.read(f"{DIST_INFO}/METADATA").decode())
        commands = archive.read(f"{DIST_INFO}/entry_points.txt").decode()
        licence = archive.read(f"{DIST_INFO}/licenses/LICENSE").decode()

    assert metadata["Name"] == "slowtok"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "slowtok = slowtok.proxy.cli.main:main" in commands
    assert "Apache License\n                           Version 2.0" in licence


def test_installed_packages_are_this_checkout() -> None:
    code = "import slowtok.proxy, slowtok.detectors, slowtok.config as c; print(c.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert Path(done.stdout.strip()).resolve() == ROOT / "config" / "__init__.py"


@pytest.mark.parametrize("name", sorted(LOCKS))
def test_lock_names_no_index_and_no_machine(name: str) -> None:
    text = LOCKS[name].read_text(encoding="utf-8")

    assert "--hash=sha256:" in text
    assert [word for word in ("/", "--index", "--find-links", " @ ") if word in text] == []


@pytest.mark.parametrize("name", sorted(LOCKS.keys() - FRAMEWORKS))
def test_lock_pins_the_same_versions_as_the_largest_one(name: str) -> None:
    locked = pins(LOCKS[name])

    assert locked.items() <= pins(LOCKS["clients"]).items()


@pytest.mark.parametrize(
    ("lock", "declared"),
    [
        ("run", PYPROJECT["project"]["dependencies"]),
        ("demo", PYPROJECT["project"]["optional-dependencies"]["demo"]),
        ("build", PYPROJECT["build-system"]["requires"]),
        ("dev", [line for line in PYPROJECT["dependency-groups"]["dev"] if isinstance(line, str)]),
        (
            "clients",
            [line for line in PYPROJECT["dependency-groups"]["clients"] if isinstance(line, str)],
        ),
        *((name, PYPROJECT["dependency-groups"][name]) for name in FRAMEWORKS),
    ],
)
def test_lock_satisfies_what_is_declared(lock: str, declared: list[str]) -> None:
    locked = pins(LOCKS[lock])

    for requirement in map(Requirement, declared):
        versions = locked[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in versions)
