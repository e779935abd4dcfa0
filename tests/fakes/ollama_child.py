"""The programs that an Ollama from 0.30 on starts: `llama-server` by PyPI's xllamacpp, and more.

Run as `llama-server` or `llama-quantize` (its first argument), with the command lines that Ollama
0.34 builds (`llm/llama_server.go`, `discover/llama_server.go`, `server/quantization.go`).
"""

import argparse
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = ("llama-server", "llama-quantize")
FLASH_ATTENTION = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}
LOAD_MODES = {"none": "NONE", "mmap": "MMAP", "dio": "DIRECT_IO"}


def install(folder: Path) -> None:
    """Put both programs into a folder, as shell scripts that keep the name in the process list."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        script = folder / name
        script.write_text(
            "#!/bin/bash\n"
            f"export PYTHONPATH='{os.pathsep.join(sys.path)}'\n"
            f"exec -a \"$0\" '{os.path.realpath(sys.executable)}' -P '{__file__}' {name} \"$@\"\n"
        )
        script.chmod(0o755)


def main(argv: Sequence[str]) -> None:
    if argv[0] == "llama-quantize":  # asked for a copy alone: what is GGUF already stays as it is
        given, made = argv[-3:-1]
        shutil.copyfile(given, made)
        return
    options = _parser().parse_args(argv[1:])
    if options.list_devices:
        sys.stdout.write("Available devices:\n")
        return
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_DFL)
    import xllamacpp  # noqa: PLC0415 - 0.1 s

    if options.model is None:  # Ollama looks which GPUs there are, then ends it
        sys.stderr.write(f"system_info: {xllamacpp.get_system_info()}\n")
        sys.stderr.flush()
    else:
        _serve(options)
    threading.Event().wait()


def _serve(options: argparse.Namespace) -> None:
    import xllamacpp  # noqa: PLC0415

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames, params.port = [options.host], options.port
    params.n_ctx, params.n_parallel = options.ctx_size, options.parallel
    params.n_batch, params.n_ubatch = options.batch_size, options.ubatch_size
    params.n_gpu_layers, params.n_keep = options.n_gpu_layers, options.keep
    params.ctx_shift, params.embedding = options.context_shift, options.embedding
    params.use_jinja = not options.no_jinja
    params.chat_template = options.chat_template or ""
    attention = f"LLAMA_FLASH_ATTN_TYPE_{FLASH_ATTENTION[options.flash_attn]}"
    params.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, attention)
    mode = f"LLAMA_LOAD_MODE_{LOAD_MODES[options.load_mode]}"
    params.load_mode = getattr(xllamacpp.llama_load_mode, mode)
    if options.threads:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.endpoint_slots = True
    params.verbosity = options.log_verbosity
    time.sleep(float(os.environ.get("SLOW_LOAD_S", "0")))  # as if its weights were many
    _running.append(xllamacpp.Server(params))


_running: list[object] = []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add = parser.add_argument
    add("--model")
    add("--host", default="127.0.0.1")
    add("--port", type=int)
    add("-c", dest="ctx_size", type=int, default=0)
    add("-np", dest="parallel", type=int, default=1)
    add("-b", dest="batch_size", type=int, default=2048)
    add("-ub", dest="ubatch_size", type=int, default=512)
    add("-ngl", dest="n_gpu_layers", type=int, default=-1)
    add("-t", dest="threads", type=int)
    add("--keep", type=int, default=0)
    add("--flash-attn", choices=FLASH_ATTENTION, default="auto")
    add("--load-mode", choices=LOAD_MODES, default="mmap")
    add("--chat-template")
    add("--log-verbosity", type=int, default=3)
    for switch in ("no-jinja", "embedding", "context-shift", "list-devices", "verbose"):
        add(f"--{switch}", action="store_true")
    for switch in ("no-webui", "offline", "no-log-prefix", "no-log-timestamps"):
        add(f"--{switch}", action="store_true")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
