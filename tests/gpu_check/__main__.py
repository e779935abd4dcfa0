"""Runs the check: `make gpu-check`. What is given is in variables, which CONTRIBUTING.md lists."""

import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from rich.console import Console

from fakes.random_model import dense
from fakes.running import keep_ram_bandwidth, measured_ram_bytes_per_s
from gpu_check.readings import Gpu
from gpu_check.report import SCHEMA, anonymous, file_name, line, wrong
from gpu_check.stage import Check, Skip
from gpu_check.steps import NEED_ENGINE, STEPS, Found
from slowtok.proxy.runtime.version import own_version

LIMIT_S = 300.0
STEP_S = 60.0
WIDTH, LAYERS = 2048, 8  # 1 GiB of weights
MOST_LAYERS = 999
LOG_CHARS = 2000
HAS_CUDA = "import sys, torch; sys.exit(not torch.cuda.is_available())"
NO_ENGINE = "neither llama-server (LLAMA_SERVER, or on PATH) nor PyTorch with CUDA (TORCH_PYTHON)"

console = Console(highlight=False, soft_wrap=True)


class TimeUp(Exception):
    """A step took too long."""


def main() -> int:
    """Check, write the file, and say how to send it in; 1 where something was wrong."""
    if not sys.platform.startswith("linux"):
        return _skip("it is for Linux")
    gpu = Gpu(int(os.environ.get("GPU_CHECK_GPU", "0")))
    if not gpu.facts:
        return _skip(f"no NVIDIA GPU ({gpu.reason})")
    # NVML's numbers, so that engine and readings are of one GPU
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu.index)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # children are ended, limits set back
    signal.signal(signal.SIGALRM, _time_up)
    console.print(f"gpu-check: {gpu.facts['name']}, driver {gpu.facts['driver']}")
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        check = _prepared(gpu, Path(folder))
        with check.stack:
            steps = list(_run(check))
    return _written(check, steps)


def _skip(why: str) -> int:
    console.print(f"gpu-check: skipped: {why}")
    return 0


def _prepared(gpu: Gpu, folder: Path) -> Check:
    server = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    program, model = [server] if server else _torch_program(), None
    if server and not (model := os.environ.get("MODEL")):
        model = str(dense(folder / "random.gguf", width=WIDTH, layers=LAYERS))
    if model and not Path(model).is_file():
        sys.exit(f"gpu-check: MODEL is no file: {model}")
    if program:
        keep_ram_bandwidth(folder / "state", measured_ram_bytes_per_s())
    return Check(
        gpu=gpu,
        folder=folder,
        program=program,
        model=Path(model).resolve() if model else None,
        seconds=float(os.environ.get("GPU_CHECK_SECONDS", "8")),
        context_tokens=int(os.environ.get("GPU_CHECK_CONTEXT", "16384")),
        gpu_layers=int(os.environ.get("GPU_CHECK_LAYERS", str(MOST_LAYERS))),
        stack=contextlib.ExitStack(),
    )


def _torch_program() -> list[str]:
    """Return the command of the load that stands in for an engine; none without PyTorch."""
    python = os.environ.get("TORCH_PYTHON") or shutil.which("python3") or sys.executable
    asked = subprocess.run([python, "-c", HAS_CUDA], capture_output=True, check=False)
    return [] if asked.returncode else [python, str(Path(__file__).with_name("torch_engine.py"))]


def _run(check: Check) -> Iterator[Found]:
    end_s = time.monotonic() + LIMIT_S
    for name, step in STEPS.items():
        begun_s = time.monotonic()
        if not check.program and name in NEED_ENGINE:
            found: Found = {"skipped": NO_ENGINE}
        elif begun_s > end_s:
            found = {"skipped": f"{LIMIT_S / 60:g} minutes are over"}
        else:
            found = _attempt(check, step, min(STEP_S, end_s - begun_s))
        took_s = round(time.monotonic() - begun_s, 1)
        told = {"step": name, "seconds": took_s, **found}
        console.print(f"  {name:20} {took_s:5.1f} s  {line(told)}", markup=False)
        yield told


def _attempt(check: Check, step: Callable[[Check], Found], limit_s: float) -> Found:
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        return step(check)
    except Skip as why:
        return {"skipped": str(why)}
    except Exception as error:  # noqa: BLE001 - the other steps go on
        said = check.log.read_text(errors="replace") if check.log.exists() else ""
        return {"failed": f"{type(error).__name__}: {error}", "engine_said": said[-LOG_CHARS:]}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _time_up(_signal: int, _frame: FrameType | None) -> None:
    raise TimeUp("it took too long")


def _written(check: Check, steps: list[Found]) -> int:
    found: dict[str, Any] = {
        "gpu_check": SCHEMA,
        "slowtok": own_version(),
        "nvidia_ml_py": version("nvidia-ml-py"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "gpu": check.gpu.facts,
        "model": check.model and check.model.name,
        "seconds": check.seconds,
        "wrong": wrong(steps),
        "steps": steps,
    }
    home = Path(os.environ.get("HOME", "")).name
    names = {psutil.Process().username(), home, *platform.node().split(".")}
    told = anonymous(found, names, [entry.name for entry in Path("/").iterdir()])
    path = Path(os.environ.get("GPU_CHECK_FOLDER", ".")) / file_name(
        check.gpu.facts["name"] or "nvidia"
    )
    path.write_text(json.dumps(told) + "\n", encoding="utf-8")
    for text in told["wrong"]:
        console.print(f"  wrong: {text}", markup=False)
    console.print(f"Written: {path}")
    console.print('Please open an issue "gpu-check: NAME OF THE GPU" and attach that file.')
    return 1 if told["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
