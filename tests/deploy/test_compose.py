"""The compose files: read by `docker compose` where it is installed, by hand everywhere."""

import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from fakes.deployed import DEPLOY, document
from slowtok.config.settings import Settings

COMPOSE = DEPLOY / "compose"
FILES = (COMPOSE / "compose.yaml", COMPOSE / "compose.nvidia.yaml")
OWN_IMAGE = "slowtok"


def services() -> dict[str, Any]:
    found: dict[str, Any] = document(FILES[0])["services"]
    return found


def has_compose() -> bool:
    try:
        done = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


@pytest.mark.skipif(not has_compose(), reason="docker compose is not installed")
@pytest.mark.parametrize("profile", ["", "records"])
def test_docker_compose_reads_it(profile: str) -> None:
    files = [part for path in FILES for part in ("-f", str(path))]
    chosen = ["--profile", profile] if profile else []
    done = subprocess.run(
        ["docker", "compose", *files, *chosen, "config", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MODEL": "/models/some.gguf"},
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_images_have_a_version_and_a_public_registry(path: Any) -> None:
    for name, service in document(path)["services"].items():
        image = service.get("image", OWN_IMAGE)
        if image == OWN_IMAGE:
            continue
        registry, _, tag = image.rpartition(":")
        assert re.search(r"\d", tag), (name, image)
        assert registry.count("/") == 1 or registry.startswith("ghcr.io/"), (name, image)


def test_nothing_is_published_beyond_this_machine() -> None:
    published = [port for service in services().values() for port in service.get("ports", ())]

    assert len(published) == 4
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_nobody_has_privileges() -> None:
    for name, service in services().items():
        assert not service.get("privileged"), name
        assert "cap_add" not in service, name
        if name != "clickhouse":  # its entry point changes its user
            assert service["cap_drop"] == ["ALL"], name
            assert service["security_opt"] == ["no-new-privileges:true"], name


def test_slowtok_sees_the_engine() -> None:
    engine, slowtok = services()["engine"], services()["slowtok"]
    dockerfile = (DEPLOY.parent / "Dockerfile").read_text(encoding="utf-8")

    assert slowtok["network_mode"] == "service:engine"
    assert f"USER {engine['user']}\n" in dockerfile  # the same user may look into its process
    assert engine["environment"]["LLAMA_ARG_HOST"] == "127.0.0.1"
    assert slowtok["environment"]["SLOWTOK_UPSTREAM"].endswith(
        f"127.0.0.1:{engine['environment']['LLAMA_ARG_PORT']}"
    )
    assert slowtok["read_only"] is True


def test_records_are_read_by_their_owner() -> None:
    """The log can be read by its owner alone."""
    collector, engine = services()["otel-collector"], services()["engine"]

    assert collector["user"] == engine["user"]
    assert "slowtok:/var/lib/slowtok" in collector["volumes"]


def test_settings_exist() -> None:
    named = {key for key in services()["slowtok"]["environment"] if key.startswith("SLOWTOK_")}

    assert named
    assert {key.removeprefix("SLOWTOK_").lower() for key in named} <= set(Settings.model_fields)


def test_prometheus_asks_by_a_name_that_slowtok_answers_to() -> None:
    [job] = document(COMPOSE / "prometheus.yml")["scrape_configs"]
    [target] = job["static_configs"][0]["targets"]
    host, _, port = target.partition(":")

    assert services()["slowtok"]["environment"]["SLOWTOK_ALLOW_HOST"] == host
    assert services()["engine"]["networks"]["default"]["aliases"] == [host]
    assert port == "4141"
    assert job["metrics_path"] == "/slowtok/metrics"


def mounted() -> Iterator[tuple[str, str]]:
    for name, service in services().items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                yield name, source


@pytest.mark.parametrize(("name", "source"), list(mounted()))
def test_what_is_mounted_is_there(name: str, source: str) -> None:
    assert (COMPOSE / source).exists(), name
