"""Calls to one GPU: failures are sorted once, and each value gets its unit.

`nvml` is the module `pynvml`, or anything that has the same functions: nothing here imports it.
Sources: nvml.h of CUDA 13.4 for meanings and units, and the error values of nvidia-ml-py 13.615.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

Values = dict[str, Any]

LOST = {
    1: "NVML is not initialised",
    9: "NVIDIA driver not loaded",
    15: "GPU is lost",
    16: "GPU needs a reset",
    18: "NVIDIA driver and library versions differ (restart needed)",
    28: "GPU not found",
}
"""Errors after which every handle is worthless until NVML is initialised again."""

FUNCTION_NOT_FOUND = 13
UNSUPPORTED = (
    3,
    FUNCTION_NOT_FOUND,
)  # NotSupported, FunctionNotFound: this GPU or driver will never answer
NO_PERMISSION = 4  # nor will this one, though another user might be answered
NOTHING_NEW = (0, 6, 21)  # NotFound, NoData, and how pynvml puts an empty list: no error
INVALID_ARGUMENT = 2  # for a field: the driver is older than its id
UNKNOWN = 999
UNKNOWN_TRIES = 3
"""An unknown error this often in a row counts as unsupported. Heuristic."""

COST_TRIES = 3

EXPENSIVE_S = 1e-3
"""A reading that costs more is moved from the 10 Hz to the 1 Hz tier."""

FIELD_VALUES = "nvmlDeviceGetFieldValues"

CLOCK_SM, CLOCK_MEMORY = 1, 2

VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The member of a field's value by its type, in the order of nvmlValueType_t."""


class GpuLost(Exception):
    """The GPU or the driver went away; the text says how."""


class Device:
    """One GPU or MIG slice: its handle, and what its driver turned out not to answer, and why.

    `absent` has the error by call (or `field <id>`): what is in it is not asked again.
    """

    def __init__(self, nvml: Any, index: int, handle: Any = None) -> None:
        self.nvml = nvml
        self.index = index
        self.absent: dict[str, int] = {}
        self.errors: Counter[str] = Counter()
        self._unknown: Counter[str] = Counter()
        self.handle = handle or self._call("nvmlDeviceGetHandleByIndex", index)

    def ask(self, name: str, *arguments: Any, key: str | None = None) -> Any:
        """Call `nvml.<name>(handle, ...)`; None where there is no answer.

        What failed is remembered by `key`: by default the name with these very arguments.

        Raises:
            GpuLost: the handle is worthless now.
        """
        if key is None:
            key = " ".join((name, *map(str, arguments))) if arguments else name
        return self.call(key, name, self.handle, *arguments)

    def call(self, key: str, name: str, *arguments: Any) -> Any:
        """Call `nvml.<name>(...)`, without the handle, and remember a failure by `key`.

        Raises:
            GpuLost: the handle is worthless now.
        """
        if key in self.absent:
            return None
        try:
            answer = getattr(self.nvml, name)(*arguments)
        except self.nvml.NVMLError as error:
            if error.value in LOST:
                raise GpuLost(LOST[error.value]) from error
            self.note(key, error.value)
            return None
        except AttributeError:  # an older binding does not know the function
            self.absent[key] = FUNCTION_NOT_FOUND
            return None
        if self._unknown:
            self._unknown.pop(key, None)
        return answer

    def ask_fields(self, *ids: int) -> dict[int, int]:
        """Return the fields that answered, by id; each has an error of its own.

        Raises:
            GpuLost: the handle is worthless now.
        """
        # with its scope (0 is the GPU): pynvml tries that first, and an error for each takes longer
        # than the call
        wanted = [(field, 0) for field in ids if f"field {field}" not in self.absent]
        if not wanted:
            return {}
        answers = self.ask(FIELD_VALUES, wanted, key=FIELD_VALUES)
        if FIELD_VALUES in self.absent:
            self.absent |= {f"field {field}": self.absent[FIELD_VALUES] for field, _ in wanted}
        return {
            answer.fieldId: int(getattr(answer.value, VALUE_MEMBERS[answer.valueType]))
            for answer in answers or ()
            if self._answered(answer)
        }

    def note(self, key: str, code: int) -> None:
        """Remember that a call failed: for good, for now, or not really."""
        if code in UNSUPPORTED or code == NO_PERMISSION:
            self.absent[key] = code
        elif code not in NOTHING_NEW:
            self.errors[key] += 1
            self._unknown[key] += code == UNKNOWN
            if self._unknown[key] >= UNKNOWN_TRIES:
                self.absent[key] = code

    def _answered(self, answer: Any) -> bool:
        key, code = f"field {answer.fieldId}", answer.nvmlReturn
        if code in LOST:
            raise GpuLost(LOST[code])
        if code == INVALID_ARGUMENT:
            self.absent[key] = code
        elif code:
            self.note(key, code)
        elif answer.valueType >= len(VALUE_MEMBERS):  # a type that is newer than this code
            self.absent[key] = UNSUPPORTED[0]
        else:
            self._unknown.pop(key, None)
        return key not in self.absent and not code

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self.nvml, name)(*arguments)
        except self.nvml.NVMLError as error:
            if error.value in LOST:
                raise GpuLost(LOST[error.value]) from error
            raise


def cost_s(read: Callable[[Device], object], device: Device) -> float:
    """Return what one reading costs once the driver has warmed up.

    The least of a few, because on a busy machine any one of them may be interrupted.
    """
    read(device)
    return min(_elapsed_s(read, device) for _ in range(COST_TRIES))


def _elapsed_s(read: Callable[[Device], object], device: Device) -> float:
    begun_s = time.perf_counter()
    read(device)
    return time.perf_counter() - begun_s
