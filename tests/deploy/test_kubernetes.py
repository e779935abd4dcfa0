"""The manifests: built by kustomize, held against the API's schemas and against no privileges."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped,unused-ignore]

from fakes.deployed import DEPLOY
from slowtok.config.settings import Settings
from slowtok.proxy.server.origins import refusal_reason

KUBERNETES = DEPLOY / "kubernetes"
WAYS = ("sidecar", "daemonset")
API_VERSION = "1.34"
Objects = list[dict[str, Any]]

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")


def plain(way: str) -> Objects:
    """The objects as they stand in the files."""
    listed = yaml.safe_load((KUBERNETES / way / "kustomization.yaml").read_text())["resources"]
    texts = ((KUBERNETES / way / name).read_text() for name in listed)
    return [found for text in texts for found in yaml.safe_load_all(text)]


def built(folder: Path) -> Objects:
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def pod_of(objects: Objects) -> dict[str, Any]:
    [workload] = [o for o in objects if o["kind"] in ("Deployment", "DaemonSet")]
    pod: dict[str, Any] = workload["spec"]["template"]["spec"]
    return pod


def slowtok_of(objects: Objects) -> dict[str, Any]:
    [found] = [c for c in pod_of(objects)["containers"] if c["name"] == "slowtok"]
    container: dict[str, Any] = found
    return container


@pytest.mark.parametrize("way", WAYS)
def test_objects_are_what_the_api_knows(way: str) -> None:
    reason = "pip install kubernetes-validate (120 MB of schemas)"
    schemas = pytest.importorskip("kubernetes_validate", reason=reason)
    for each in plain(way):
        schemas.validate(each, API_VERSION, strict=True)


def test_the_schemas_find_a_wrong_field() -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="not installed")
    [service] = [o for o in plain("sidecar") if o["kind"] == "Service"]
    service["spec"]["port"] = 4141
    with pytest.raises(schemas.ValidationError):
        schemas.validate(service, API_VERSION, strict=True)


@pytest.mark.parametrize("way", WAYS)
def test_the_restricted_standard_is_met(way: str) -> None:
    """Pod Security Standards, restricted: what it demands and forbids, field by field."""
    pod = pod_of(plain(way))
    context = pod["securityContext"]

    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == 4141  # the image's
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostPID", "hostIPC", "hostNetwork"} & pod.keys()
    kinds = {"emptyDir", "persistentVolumeClaim"}
    assert all(volume.keys() - {"name"} <= kinds for volume in pod["volumes"])
    for container in pod["containers"]:
        inner = container["securityContext"]
        assert inner["allowPrivilegeEscalation"] is False
        assert inner["capabilities"] == {"drop": ["ALL"]}
        assert inner["readOnlyRootFilesystem"] is True
        assert "privileged" not in inner
        assert not any("hostPort" in port for port in container.get("ports", ()))


@pytest.mark.parametrize("way", WAYS)
def test_health_is_asked_and_limits_are_set(way: str) -> None:
    container = slowtok_of(plain(way))

    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/slowtok/health", "port": "http"}
    assert {"name": "http", "containerPort": 4141} in container["ports"]
    for each in pod_of(plain(way))["containers"]:
        assert {"memory", "ephemeral-storage"} <= each["resources"]["limits"].keys()
        assert {"cpu", "memory"} <= each["resources"]["requests"].keys()
    assert pod_of(plain(way))["runtimeClassName"] == "nvidia"


@pytest.mark.parametrize("way", WAYS)
def test_settings_exist(way: str) -> None:
    names = [e["name"] for e in slowtok_of(plain(way))["env"] if e["name"].startswith("SLOWTOK_")]

    assert names
    assert {n.removeprefix("SLOWTOK_").lower() for n in names} <= set(Settings.model_fields)


@pytest.mark.parametrize("way", WAYS)
def test_whoever_uses_the_service_by_name_is_answered(way: str) -> None:
    [service] = [o for o in plain(way) if o["kind"] == "Service"]
    [said] = [e for e in slowtok_of(plain(way))["env"] if e["name"] == "SLOWTOK_ALLOW_HOST"]
    own_hosts = said["value"].replace("$(NAMESPACE)", "ai").split(",")
    name = service["metadata"]["name"]

    for host in (name, f"{name}.ai", f"{name}.ai.svc", f"{name}.ai.svc.cluster.local"):
        assert refusal_reason(f"{host}:4141", None, own_hosts=own_hosts, allowed=()) is None
    assert refusal_reason("10.1.2.3:4141", None, own_hosts=(), allowed=()) is None  # the kubelet
    assert refusal_reason(f"{name}.other:4141", None, own_hosts=own_hosts, allowed=())


@pytest.mark.parametrize("way", WAYS)
def test_the_service_finds_the_pods(way: str) -> None:
    objects = plain(way)
    [service] = [o for o in objects if o["kind"] == "Service"]
    [workload] = [o for o in objects if o["kind"] in ("Deployment", "DaemonSet")]
    labels = workload["spec"]["template"]["metadata"]["labels"]

    assert service["spec"]["selector"].items() <= labels.items()
    assert workload["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert service["spec"]["ports"][0]["targetPort"] == "http"


def test_the_sidecar_sees_the_engine_and_outlives_no_request() -> None:
    pod = pod_of(plain("sidecar"))
    engine, slowtok = pod["containers"]
    grace_s = int(next(e["value"] for e in slowtok["env"] if e["name"] == "SLOWTOK_GRACE_S"))
    engine_waits_s = int(engine["lifecycle"]["preStop"]["exec"]["command"][1])
    slowtok_waits_s = int(slowtok["lifecycle"]["preStop"]["exec"]["command"][1])

    assert pod["shareProcessNamespace"] is True
    assert "securityContext" in engine  # one user for both: set for the Pod, changed by none
    assert "runAsUser" not in engine["securityContext"]
    assert "runAsUser" not in slowtok["securityContext"]
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert slowtok_waits_s + grace_s < engine_waits_s < pod["terminationGracePeriodSeconds"]
    mounts = [{"name": "models", "mountPath": "/models", "readOnly": True}]
    for container in (engine, slowtok):
        assert mounts[0] in container["volumeMounts"]


@needs_kubectl
@pytest.mark.parametrize("way", WAYS)
def test_kustomize_builds_it(way: str) -> None:
    container = slowtok_of(built(KUBERNETES / way))

    assert container["image"] == "slowtok:0.1.0"


def overlay(tmp_path: Path, way: str, component: str) -> Path:
    copy = tmp_path / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    (copy / "overlay").mkdir()
    (copy / "overlay" / "kustomization.yaml").write_text(
        f"resources: [../{way}]\ncomponents: [../components/{component}]\n"
    )
    return copy / "overlay"


@needs_kubectl
@pytest.mark.parametrize("way", WAYS)
def test_host_pid_is_added_where_it_is_asked_for_and_nothing_else(way: str, tmp_path: Path) -> None:
    before = pod_of(built(KUBERNETES / way))
    after = pod_of(built(overlay(tmp_path, way, "host-pid")))

    assert after.pop("hostPID") is True
    assert "shareProcessNamespace" not in after  # the API refuses both at once
    before.pop("shareProcessNamespace", None)
    assert after == before


@needs_kubectl
@pytest.mark.parametrize("way", WAYS)
def test_pod_monitor_asks_the_right_port(way: str, tmp_path: Path) -> None:
    objects = built(overlay(tmp_path, way, "pod-monitor"))
    [monitor] = [o for o in objects if o["kind"] == "PodMonitor"]
    [workload] = [o for o in objects if o["kind"] in ("Deployment", "DaemonSet")]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]

    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert (endpoint["port"], endpoint["path"]) == ("http", "/slowtok/metrics")
