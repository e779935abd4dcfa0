"""The GPU of an Apple Silicon Mac, through the program `macmon` where it is installed.

Strategy: macOS tells a GPU's load and power to a private interface alone, and macmon
(github.com/vladkens/macmon, `brew install macmon`) speaks it without being root. One line of it is
asked for at the start: it shows the chip, and whether what is on PATH is that program at all (PyPI
has another one of this name). After that it runs only while requests do. It ends with this process:
its next line finds nobody who reads. Its fields are those of macmon 0.8.2 (`src_lib/metrics.rs` and
`src_app/main.rs`); up to 0.7 there was only `gpu_usage`, clock and load together.
"""

import contextlib
import json
import queue
import shutil
import subprocess
import threading
import time
from typing import Any, TextIO, cast

from slowtok.proxy.sampling.schedule import ALL, Extras

PROGRAM = "macmon"
FIRST_LOOK = ("pipe", "-s", "1", "-i", "100", "--soc-info")
FOLLOW = ("pipe", "-i", "500")

FIRST_LINE_S = 10.0
"""How long the first line may take. Heuristic."""

SILENCE_S = 5.0
"""Ten periods without a line: it hangs."""

AGAIN_S = 30.0
"""After it has ended by itself or hung, it is started again no sooner than this."""

MAX_CHARS = 64 * 1024
"""A longer line is cut, and then not macmon's: each core takes it about 100 characters."""

NOT_INSTALLED = "macmon is not installed, which reads Apple's GPUs: brew install macmon"
ANOTHER = (
    "the `macmon` on PATH does not print what vladkens/macmon does on Apple Silicon from 0.6.1 on: "
    "brew install macmon"
)
STOPPED = "macmon stopped giving samples"

Values = dict[str, Any]

SILENT_ABOUT = (
    "dram_busy_ratio",
    "ecc_errors",
    "energy_j",
    "memory_busy_ratio",
    "memory_clock_mhz",
    "memory_temperature_c",
    "power_limit_w",
    "power_source",
    "processes",
    "pstate",
    "reasons",
    "remapped_rows",
    "temperature_margin_c",
    "throttled_hw_thermal_ns",
    "throttled_power_brake_ns",
    "throttled_power_ns",
    "throttled_sw_thermal_ns",
    "xid",
    "xids",
)
NOT_OF_A_CHIP = (
    "free_bytes",
    "pcie_generation",
    "pcie_replays",
    "pcie_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
    "pcie_width",
    "reserved_bytes",
    "total_bytes",
    "vgpu_licensed",
)
ABSENT = dict.fromkeys(SILENT_ABOUT, "macmon does not report it") | dict.fromkeys(
    NOT_OF_A_CHIP, "the GPU is part of the processor and uses the memory of the machine"
)


class _Run:
    """One run of the program, its lines gathered by a thread."""

    def __init__(self, program: str, *arguments: str) -> None:
        self.lines: queue.Queue[tuple[float, str]] = queue.Queue(maxsize=100)
        self.heard_at_s = time.monotonic()
        self._process = subprocess.Popen(  # noqa: S603  found on PATH as the user would find it
            (program, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        self._gathering = threading.Thread(target=self._gather, name=PROGRAM, daemon=True)
        self._gathering.start()

    def _gather(self) -> None:
        with cast(TextIO, self._process.stdout) as stdout:  # a pipe was asked for
            while text := stdout.readline(MAX_CHARS):
                self.heard_at_s = time.monotonic()
                with contextlib.suppress(queue.Full):  # nobody wants them now
                    self.lines.put_nowait((self.heard_at_s, text))

    def take(self) -> list[tuple[float, Values | None]]:
        """Return the lines since the last time."""
        taken = []
        with contextlib.suppress(queue.Empty):
            while True:
                at_s, text = self.lines.get_nowait()
                taken.append((at_s, parse_line(text)))
        return taken

    def has_ended(self) -> bool:
        """Return True if no line will come any more."""
        return not self._gathering.is_alive()

    def end(self) -> None:
        """End it, if it has not ended by itself."""
        self._process.kill()
        self._process.wait()
        self._gathering.join()


class Macmon:
    """The one GPU of an Apple Silicon Mac. Not thread-safe."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._run: _Run | None = None
        self._start_at_s = 0.0
        self._facts: Values | None = None
        self._reason: str | None = None
        self._told: Values | None = None
        self._errors = self._hung = 0

    def __len__(self) -> int:
        return 0 if self._facts is None else 1

    def changes(self) -> Values | None:
        """Return the line about the GPU and why there is none, if it changed."""
        if self._facts is None and self._reason is None:
            return None  # still looking
        gpus = None if self._facts is None else [self._facts]
        state = {"kind": "gpus", "gpus": gpus, "reason": self._reason}
        if state == self._told:
            return None
        self._told = state
        return state

    def counts(self) -> Values:
        """Return how many lines could not be read, and how often the program went silent."""
        return {"gpu_errors": self._errors, "gpu_samples_stalled": 0, "gpu_hung": self._hung}

    def sample(
        self, *, slow_tier: bool, servers: set[int] | None, extras: Extras = ALL
    ) -> list[Values]:
        """Return the samples that have come since the last call, all of them alike."""
        if self._facts is None:
            self._look()
            return []
        if self._run is None and time.monotonic() >= self._start_at_s:
            self._start(FOLLOW)
        return [] if self._run is None else self._follow(self._run)

    def sample_idle(self, servers: set[int] | None) -> list[Values]:
        """Return nothing: the program rests while the machine does."""
        if self._facts is None:
            self._look()
        else:
            self.close()
        return []

    def close(self) -> None:
        """End the program."""
        if self._run is not None:
            self._run.end()
            self._run = None

    def _start(self, arguments: tuple[str, ...]) -> None:
        try:
            self._run = _Run(self._program, *arguments)
        except OSError as error:
            self._reason = f"{self._program} cannot be started: {error.strerror}"
            self._start_at_s = time.monotonic() + AGAIN_S

    def _look(self) -> None:
        """Find out, over several calls, what this machine has and whether the program can tell."""
        if self._reason is not None:
            return
        if self._run is None:
            self._start(FIRST_LOOK)
            return
        late = time.monotonic() - self._run.heard_at_s > FIRST_LINE_S
        ended = self._run.has_ended()  # asked before its lines: none can come after
        found = [line for _, line in self._run.take()]
        line = next((line for line in found if line is not None), None)
        if line is not None:
            self._facts = read_facts(line)
        elif found or ended or late:
            self._reason = ANOTHER
        else:
            return
        self.close()

    def _follow(self, run: _Run) -> list[Values]:
        most_mhz = (self._facts or {}).get("max_sm_clock_mhz")
        taken = run.take()
        samples = [read_sample(line, at_s, most_mhz) for at_s, line in taken if line is not None]
        self._errors += len(taken) - len(samples)
        silent = time.monotonic() - run.heard_at_s > SILENCE_S
        if silent or run.has_ended():
            self._hung += silent
            self._reason, self._start_at_s = STOPPED, time.monotonic() + AGAIN_S
            self.close()
        elif samples:
            self._reason = None
        return samples


def open_macmon() -> Macmon | str:
    """Return the reader, or why there is none."""
    program = shutil.which(PROGRAM)
    return NOT_INSTALLED if program is None else Macmon(program)


def parse_line(text: str) -> Values | None:
    """Return one line's values; None for what macmon does not print."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    if not isinstance(line, dict) or not isinstance(line.get("temp"), dict):
        return None
    values = _clock_and_load(line) or (None,)
    return line if all(isinstance(value, int | float) for value in values) else None


def _clock_and_load(line: Values) -> tuple[Any, Any] | None:
    if "gpu_freq_mhz" in line and "gpu_scaled_ratio" in line:
        return line["gpu_freq_mhz"], line["gpu_scaled_ratio"]
    both = line.get("gpu_usage")
    return (both[0], both[1]) if isinstance(both, list) and len(both) == 2 else None


def read_facts(line: Values) -> Values:
    """Return what does not change, by the names of the `GpuFacts` fields.

    Chips of the class Max come with fewer or more GPU cores, and another bandwidth with each.
    """
    soc = line.get("soc") or {}
    name, cores = soc.get("chip_name"), soc.get("gpu_cores")
    if name and cores and name.endswith(" Max"):
        name = f"{name} ({cores}-core)"
    return {
        "index": 0,
        "name": name,
        "vendor": "apple",
        "max_sm_clock_mhz": max(soc.get("gpu_freqs") or [], default=None),
        "unified_memory": True,
        "mig": False,
        "absent": ABSENT,
    }


def read_sample(line: Values, at_s: float, most_mhz: int | None) -> Values:
    """Return one line as a sample; it is about the half second before `at_s`."""
    clock_mhz, scaled_ratio = _clock_and_load(line) or (None, None)
    busy_ratio = line.get("gpu_active_ratio")
    if busy_ratio is None and most_mhz and clock_mhz and scaled_ratio is not None:
        # before 0.8 there is only the load weighted by the clock
        busy_ratio = min(scaled_ratio * most_mhz / clock_mhz, 1.0)
    return {
        "kind": "gpu",
        "at_s": at_s,
        "index": 0,
        "busy_ratio": busy_ratio,
        "sm_clock_mhz": clock_mhz,
        "power_w": line.get("gpu_power"),
        "temperature_c": round(line["temp"].get("gpu_temp_avg") or 0) or None,
    }
