"""`make gpu-check`: what it compares, how it judges, and the whole of it on a stand-in GPU."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpu_check.steps
from fakes.nvml import stand_in
from fakes.nvml.cards import RTX_4090
from fakes.nvml.stand_in import Script
from fakes.random_model import dense
from gpu_check.comparison import asked_for, compare
from gpu_check.report import anonymous, file_name, line, wrong
from gpu_check.stage import Skip
from gpu_check.steps import STEPS, power_limited
from gpu_check.verdict import judge
from slowtok.proxy.outputs.case_file import parse_case

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
OPTION = "GPU_CHECK_"
SHORT = {f"{OPTION}SECONDS": "0.5", f"{OPTION}CONTEXT": "1024", f"{OPTION}LAYERS": "0"}
FILE = "gpu-check-nvidia-geforce-rtx-4090.json"

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the check is for Linux")

SMI_SAYS = {
    "name": "NVIDIA GeForce RTX 4090",
    "driver_version": "580.95.05",
    "pci.bus_id": "00000000:01:00.0",
    "mig.mode.current": "[N/A]",
    "memory.total": "24564",
    "memory.free": "1003",
    "memory.reserved": "460",
    "utilization.gpu": "95",
    "utilization.memory": "60",
    "power.draw.instant": "308.11",
    "power.draw": "300.00",
    "enforced.power.limit": "400.00",
    "clocks.current.sm": "2520",
    "clocks.current.memory": "10251",
    "pstate": "P2",
    "clocks_event_reasons.active": "0x0000000000000004",
    "temperature.gpu": "64",
    "temperature.gpu.tlimit": "19",
    "temperature.memory": "N/A",
    "pcie.link.gen.gpucurrent": "4",
    "pcie.link.width.current": "16",
}
"""As nvidia-smi writes what the stand-in's card says; but its link is twice as wide here."""

NO_GPU = {"memory-nearly-full", "power-limit", "memory-held-at-load"}
"""Steps that need CUDA's driver, or one that lets anybody set a limit."""

SMI = """#!{python} -S
import json, sys
says = json.load(open({values!r}))
if sys.argv[1] == "--help-query-gpu":
    print(*(f'"{{name}}"\\nWhat it is.\\n' for name in says), sep="\\n")
else:
    print(", ".join(says[name] for name in sys.argv[1].partition("=")[2].split(",")))
"""


def compared(said: str, field: str, *ours: Any) -> bool:
    [found] = compare([{field: value} for value in ours], {field: said})
    return bool(found["same"])


@pytest.mark.parametrize(
    ("field", "ours", "said"),
    [
        ("name", "A GPU", "A GPU"),
        ("pci_bus_id", "0000:0a:00.0", "00000000:0A:00.0"),
        ("mig", False, "Disabled"),
        ("free_bytes", 1000 * MIB + 5, "1000"),
        ("busy_ratio", 0.97, "95"),
        ("power_w", 310.5, "300.1"),
        ("sm_clock_mhz", 2520, "2505"),
        ("pstate", 2, "P2"),
        ("reasons", 4, "0x0000000000000001"),
        ("throttled_power_ns", 7_000_000_000, "7000001"),
    ],
)
def test_readings_that_agree(field: str, ours: Any, said: str) -> None:
    assert compared(said, field, ours)


@pytest.mark.parametrize(
    ("field", "ours", "said"),
    [
        ("name", "A GPU", "Another"),
        ("total_bytes", 24564 * MIB, "24000"),
        ("power_limit_w", 400.0, "450.00"),
        ("pcie_width", 8, "16"),
        ("temperature_c", 64, "71"),
        ("memory_temperature_c", None, "71"),
        ("reasons", None, "0x0"),
        ("pstate", 2, "a word of tomorrow"),
        ("ecc_errors", 3, "[N/A]"),
    ],
)
def test_readings_that_differ(field: str, ours: Any, said: str) -> None:
    assert not compared(said, field, ours)


def test_what_moves_while_nvidia_smi_runs_lies_among_the_readings() -> None:
    assert compared("260", "power_w", 200.0, 300.0)
    assert not compared("350", "power_w", 200.0, 300.0)


def test_what_neither_knows_is_no_line() -> None:
    assert compare([{}], {"memory_temperature_c": "N/A"}) == []


def test_only_names_that_nvidia_smi_knows_are_asked_for() -> None:
    assert asked_for({"clocks.sm", "power.draw", "power.draw.instant"}) == {
        "sm_clock_mhz": "clocks.sm",
        "power_w": "power.draw.instant",
    }


def record(verdict: str, *causes: str, tps: float = 50.0, queue_ms: float = 0.0) -> dict[str, Any]:
    findings: list[dict[str, Any]] = [{"cause": cause} for cause in causes]
    findings.append({"cause": "long-context", "informational": True})
    rest = {"rate": {"decode_tps": tps}, "timing": {"queue_ms": queue_ms}}
    return {"verdict": verdict, "findings": findings, **rest}


@pytest.mark.parametrize(
    ("planted", "said", "judgement"),
    [
        ((), record("normal"), "right"),
        ((), record("unknown"), "right"),
        ((), record("slow"), "false alarm"),
        ((), record("slow", "power-cap"), "false alarm"),
        (("power-cap",), record("slow", "power-cap", "gpu-shared"), "right"),
        (("power-cap",), record("slow", "gpu-shared", "power-cap"), "wrong"),
        (("power-cap",), record("slow"), "missed"),
        (("power-cap",), record("normal"), "missed"),
        (("power-cap",), record("normal", tps=95.0), "no effect"),
        (("queued",), record("normal", queue_ms=900.0), "missed"),
        (("queued",), record("normal", queue_ms=90.0), "no effect"),
    ],
)
def test_a_diagnosis_is_held_against_what_was_planted(
    planted: tuple[str, ...], said: Mapping[str, Any], judgement: str
) -> None:
    assert judge(planted, said, plain_tps=100.0) == judgement


def test_nothing_tells_whose_machine_it_was() -> None:
    told = anonymous(
        {
            "path": "/home/joan doe/models/big model.gguf",
            "said": "could not open '/home/joan/x/y.gguf': joan@tower",
            "api": "/v1/chat/completions",
            "url": "http://127.0.0.1:8080",
            "vendor": "nvidia",
            "gpu": ("GPU-11111111-aaaa-bbbb-cccc-000000000001", 3, None),
        },
        names={"joan", "tower", "nvidia", "v1"},
        roots={"home", "usr"},
    )

    assert told == {
        "path": "big model.gguf",
        "said": "could not open 'y.gguf': NAME@NAME",
        "api": "/v1/chat/completions",
        "url": "http://127.0.0.1:8080",
        "vendor": "nvidia",
        "gpu": ["GPU-0", 3, None],
    }


def test_only_what_slowtok_has_to_answer_for_is_wrong() -> None:
    asked = {"verdict": "slow", "phase": "decode", "causes": ["power-cap"], "planted": []}
    steps: list[dict[str, Any]] = [
        {"step": "readings", "compared": [{}], "differ": ["pcie_width"]},
        {"step": "cost-idle", "sampling_cpu_ratio": 0.002, "within": True},
        {"step": "cost-under-load", "sampling_cpu_ratio": 0.02, "within": False},
        {"step": "decode", "judged": "false alarm", **asked},
        {"step": "queue", "judged": "missed", **asked},
        {"step": "competitor", "failed": "x"},
        {"step": "power-limit", "skipped": "y"},
    ]

    assert wrong(steps) == [
        "readings: pcie_width is not what nvidia-smi says",
        "cost-under-load: sampling takes 2.00% of a core",
        "decode: a healthy request was called slow (decode, power-cap)",
    ]
    assert [line(step) for step in steps[-2:]] == ["failed: x", "skipped: y"]
    assert line(steps[3]) == "done; slow, power-cap: false alarm"


def test_the_file_is_named_after_the_gpu() -> None:
    assert file_name("NVIDIA GeForce RTX 4090") == FILE


def run(folder: Path, **given: str) -> subprocess.CompletedProcess[str]:
    here = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    paths = os.pathsep.join(str(ROOT / name) for name in ("tests", ".", ".dev"))
    return subprocess.run(
        [sys.executable, "-m", "gpu_check"],
        env={**here, "PYTHONPATH": paths, f"{OPTION}FOLDER": str(folder), **given},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@on_linux
def test_without_a_gpu_it_says_so_and_is_done(tmp_path: Path) -> None:
    nowhere = tmp_path / "libnvidia-ml.so.1"
    nowhere.touch()  # what the loader finds first, and cannot load

    done = run(tmp_path, LD_LIBRARY_PATH=str(tmp_path))

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("gpu-check: skipped: ")
    assert len(done.stdout.splitlines()) == 1
    assert [*tmp_path.iterdir()] == [nowhere]


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The variables of a machine with a GPU, by the stand-in and an nvidia-smi that agrees."""
    programs = tmp_path / "bin"
    programs.mkdir()
    values = tmp_path / "smi.json"
    values.write_text(json.dumps(SMI_SAYS))
    engine = f'#!/bin/sh\nexec {sys.executable} -m slowtok.proxy.cli.demo.engine "$@" --threads 1\n'
    for name, text in {
        "nvidia-smi": SMI.format(python=sys.executable, values=str(values)),
        "llama-server": engine,
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o700)
    (tmp_path / "libcuda.so.1").touch()  # the memory of a real GPU is not for a test to hold
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{stand_in.library().parent}{os.pathsep}{tmp_path}",
        "NVML_STAND_IN": str(Script(tmp_path / "nvml.txt", RTX_4090).path),
        "NVML_STAND_IN_ONCE": "1",
    }


@on_linux
@pytest.mark.engine
def test_the_whole_check_with_a_real_engine(machine: dict[str, str], tmp_path: Path) -> None:
    """The engine runs on the CPU: what is said of the GPU's slow-downs is not looked at."""
    model = dense(tmp_path / "tiny.gguf", width=256, layers=4)

    done = run(tmp_path, **machine, **SHORT, MODEL=str(model))

    steps = report(tmp_path)
    assert [*steps] == [*STEPS], done.stderr
    assert {name for name, step in steps.items() if {"skipped", "failed"} & {*step}} == NO_GPU
    assert [step["differ"] for step in steps.values() if "differ" in step] == [["pcie_width"]] * 2
    assert steps["idle"]["gpu"][0]["power_w"] == 310.5
    assert steps["cost-idle"]["calls"]["DeviceGetClockInfo 1"]["calls"] > 1
    cases = [parse_case(json.dumps(step["case"]).encode()) for step in steps.values() if asks(step)]
    assert len(cases) == len(STEPS) - len(NO_GPU) - 4  # which ask for nothing
    assert not any(case.unknown for case in cases)
    assert {case.case.model.path for case in cases} == {"tiny.gguf"}
    assert all(case.case.gpu and case.record for case in cases)
    text = (tmp_path / FILE).read_text()
    assert "Line 1" not in text
    assert str(tmp_path) not in text
    assert done.returncode == 1
    assert "wrong: readings: pcie_width is not what nvidia-smi says" in done.stdout


def report(folder: Path) -> dict[str, dict[str, Any]]:
    """The steps in the file, by their names."""
    told = json.loads((folder / FILE).read_text())
    return {step["step"]: step for step in told["steps"]}


def asks(step: Mapping[str, Any]) -> bool:
    return "judged" in step


TORCH = """
import numpy
float16 = "f4"
class cuda:
    is_available = staticmethod(lambda: True)
    synchronize = staticmethod(lambda: None)
def randn(*shape, dtype, device):
    return numpy.ones([min(size, 64) for size in shape], dtype)
def softmax(values, axis):
    return numpy.exp(values - values.max()) / len(values)
"""
"""As much of PyTorch as the load uses, on the CPU."""


@on_linux
@pytest.mark.engine
def test_pytorch_stands_in_for_an_engine(machine: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "bin" / "llama-server").unlink()
    python = tmp_path / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o700)

    done = run(tmp_path, **machine | {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}, **SHORT)

    steps = report(tmp_path)
    missing = {name for name, step in steps.items() if {"skipped", "failed"} & {*step}}
    assert missing == {*NO_GPU, "partial-offload"}, done.stdout
    assert steps["partial-offload"]["skipped"] == "PyTorch's load has no layers"
    case = parse_case(json.dumps(steps["prefill"]["case"]).encode()).case
    assert case.timeline.ended == "length"
    assert case.timeline.tokens.completion == 16
    assert case.timeline.tokens.prompt is not None


def setting(monkeypatch: pytest.MonkeyPatch, user: int) -> list[int]:
    """Put a driver in place that lets this user set a limit; all limits so far, in mW."""
    limits_mw = [400_000]
    driver = SimpleNamespace(
        NVMLError=LookupError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetPowerManagementLimit=lambda gpu: limits_mw[-1],
        nvmlDeviceGetPowerManagementLimitConstraints=lambda gpu: (150_000, 600_000),
        nvmlDeviceSetPowerManagementLimit=lambda gpu, limit_mw: limits_mw.append(limit_mw),
    )
    monkeypatch.setattr(gpu_check.steps, "pynvml", driver)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    return limits_mw


@on_linux
@pytest.mark.parametrize(
    ("drawn_w", "lowered_mw"), [([290.0, 300.0, 310.0], 210_000), ([60.0], 150_000)]
)
def test_the_power_limit_is_set_back_whatever_happens(
    drawn_w: list[float], lowered_mw: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits_mw = setting(monkeypatch, 1000)

    with pytest.raises(SystemExit), power_limited(0, drawn_w):
        sys.exit()

    assert limits_mw == [400_000, 400_000, lowered_mw, 400_000]


@on_linux
@pytest.mark.parametrize(("user", "drawn_w"), [(0, [300.0]), (1000, [])], ids=["root", "no draw"])
def test_the_power_limit_is_left_alone(
    user: int, drawn_w: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits_mw = setting(monkeypatch, user)

    with pytest.raises(Skip), power_limited(0, drawn_w):
        pass

    assert set(limits_mw) == {400_000}
