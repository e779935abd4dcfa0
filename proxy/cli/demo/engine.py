"""A real llama-server in this process, from PyPI `xllamacpp`.

`python -m slowtok.proxy.cli.demo.engine --model FILE --port PORT`: its options carry llama-server's
names, so that its command line tells the same facts as one that the user started. It ends on
SIGTERM or SIGINT, and when its parent ends.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from slowtok.proxy.cli.demo.leash import wait_for_end_of

PROGRAM = "python -m slowtok.proxy.cli.demo.engine"
LISTENING = "listening on "
"""What the one line on stdout begins with; the engine's base URL follows."""

EXPERTS = r"ffn_(up|down|gate|gate_up)_(ch|)exps"  # as llama.cpp's own options name them
QUIET_VERBOSITY = 1  # errors alone; llama-server's default is 3


def main(argv: Sequence[str] | None = None) -> None:
    """Load the model, listen, say where in one line, and stay until somebody ends it."""
    parent_pid = os.getppid()
    options = _parser().parse_args(argv)
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_DFL)  # Python's own handlers wait for the engine's threads
    try:
        server = _start(options)
    except (ImportError, RuntimeError) as error:
        sys.exit(f"llama-server did not start: {error}")
    sys.stdout.write(f"{LISTENING}{server.listening_address}\n")
    sys.stdout.flush()
    wait_for_end_of(parent_pid)
    os._exit(0)  # at once, as after SIGTERM


class _Listening:
    """What is used of `xllamacpp.Server`, which carries no types."""

    listening_address: str


def _start(options: argparse.Namespace) -> _Listening:
    import xllamacpp  # noqa: PLC0415 - an optional extra, and 0.1 s

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx = options.ctx_size
    params.n_parallel = options.parallel
    params.n_gpu_layers = options.n_gpu_layers
    if options.threads is not None:  # else the engine's own choice
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    if options.alias is not None:
        params.model_alias = {options.alias}
    if options.chat_template_file is not None:
        params.chat_template = Path(options.chat_template_file).read_text("utf-8")
    params.swa_full = options.swa_full
    if options.ctx_checkpoints is not None:
        params.n_ctx_checkpoints = options.ctx_checkpoints
    if options.cache_ram is not None:
        params.cache_ram_mib = options.cache_ram
    params.n_cache_reuse = options.cache_reuse
    if options.slot_save_path is not None:
        params.slot_save_path = str(Path(options.slot_save_path)) + os.sep
    if options.no_mmap:
        params.load_mode = xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_NONE
    kept = [f"blk\\.{layer}\\.{EXPERTS}=CPU" for layer in range(options.n_cpu_moe)]
    kept += [f"{EXPERTS}=CPU"] * options.cpu_moe + options.override_tensor
    params.tensor_buft_overrides = ",".join(kept)
    kinds = xllamacpp.common_speculative_type
    if options.model_draft is not None:
        params.speculative.draft.mparams.path = options.model_draft
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    elif options.spec_type != "none":
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    params.endpoint_metrics = options.metrics
    params.endpoint_slots = True
    params.sleep_idle_seconds = options.sleep_idle_seconds
    params.verbosity = options.verbosity
    server: _Listening = xllamacpp.Server(params)
    return server


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    add = parser.add_argument
    add("-m", "--model", required=True, help="a GGUF file")
    add("-a", "--alias", help="name of the model in the API (default: its path)")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8080)
    add("-c", "--ctx-size", type=int, default=0, help="tokens, all slots together; 0: as trained")
    add("-np", "--parallel", type=int, default=1, help="number of slots")
    add("-t", "--threads", type=int, help="CPU threads, for prefill too")
    add("-ngl", "--n-gpu-layers", "--gpu-layers", type=int, default=-1, help="-1: as many as fit")
    add("--chat-template-file", help="a template in place of the model's own")
    add("--swa-full", action="store_true", help="keep all of a sliding window's KV cache")
    add("-ctxcp", "--ctx-checkpoints", type=int, help="states of a sequence to go back to")
    add("-cram", "--cache-ram", type=int, help="MiB for prompts that have no slot; 0: none")
    add("--cache-reuse", type=int, default=0, help="tokens in a row that are worth moving; 0: none")
    add("--slot-save-path", help="a folder for slots that are saved")
    add("--no-mmap", action="store_true", help="read the weights, do not map the file")
    add("-ncmoe", "--n-cpu-moe", type=int, default=0, help="layers whose experts stay in RAM")
    add("-cmoe", "--cpu-moe", action="store_true", help="all experts stay in RAM")
    add("-ot", "--override-tensor", action="append", default=[], help="PATTERN=BUFFER,...")
    add("-md", "--model-draft", help="a GGUF file of a model that drafts")
    add(
        "--spec-type", choices=("none", "ngram-simple"), default="none", help="drafts from the text"
    )
    add("--metrics", action="store_true", help="Prometheus text at /metrics")
    add("--sleep-idle-seconds", type=int, default=-1, help="put an idle model away; -1: never")
    add("-lv", "--verbosity", type=int, default=QUIET_VERBOSITY)
    return parser


if __name__ == "__main__":
    main()
