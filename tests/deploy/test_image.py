"""What the image holds: the extras that deploy/ needs, in the versions that are tested."""

import re
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fakes.deployed import ROOT

EXTRAS = ("otel", "postgresql", "redis")


def pinned(name: str) -> set[str]:
    text = (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8")
    return set(re.findall(r"^(\S+==\S+)", text, flags=re.MULTILINE))


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


@pytest.mark.parametrize("extra", EXTRAS)
def test_extras_are_in_it(extra: str) -> None:
    names = {canonicalize_name(pin.partition("==")[0]) for pin in pinned("image")}
    wanted = (Requirement(text) for text in project()["optional-dependencies"][extra])

    assert {canonicalize_name(requirement.name) for requirement in wanted} <= names


def test_it_holds_what_is_run_in_tested_versions() -> None:
    assert pinned("run") <= pinned("image") <= pinned("dev")


def test_it_is_what_the_dockerfile_installs() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")

    assert "--require-hashes -r requirements/image.lock" in dockerfile
    for base in re.findall(r"^FROM (\S+)", dockerfile, flags=re.MULTILINE):
        assert re.fullmatch(r"python:3\.\d+-slim-\w+", base)
