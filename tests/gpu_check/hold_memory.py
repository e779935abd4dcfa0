"""Holds the memory of the first CUDA device, as another program would, until stdin closes.

python hold_memory.py BYTES leaves so many free. It needs the driver alone, and prints one line:
how many bytes it holds, or why it can hold none.
"""

import ctypes
import sys

BLOCK_BYTES = 256 << 20


def main(leave_bytes: int) -> None:
    """Take blocks until no more than that is free."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, block = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()

    def call(name: str, *arguments: object) -> None:
        if error := getattr(cuda, name)(*arguments):
            sys.exit(f"{name} failed with error {error}")

    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    held_bytes = 0
    while True:
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        size_bytes = min(free.value - leave_bytes, BLOCK_BYTES)
        if size_bytes < 1 << 20:
            break
        call("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(size_bytes))
        held_bytes += size_bytes
    sys.stdout.write(f"{held_bytes}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except OSError as error:
        sys.exit(str(error))
