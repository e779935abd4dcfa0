"""`slowtok mcp`: the commands as tools for agents, a Model Context Protocol server on stdio.

Strategy: each tool runs a command of the same slowtok and answers with what it prints, so that
agents are told what people are told, and one that breaks costs only its answer. A call takes what
a command takes to start, some tenths of a second.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from slowtok.proxy.runtime.version import own_version

COMMAND = (sys.executable, "-P", "-m", "slowtok.proxy")
LONGEST_S = 120.0  # `doctor` takes up to a quarter of it where engines do not answer
COLUMNS = "120"
INSTRUCTIONS = """\
slowtok is a local proxy for LLM engines (llama-server, vLLM, Ollama). It has timed each request
that went through it and knows why it was slow. Where a run of yours was slow, ask explain_run
first: it says where its wall time went and what to fix first. A request's id is in the header
slowtok-id of its reply. Prompts are never kept, so that no answer quotes them; a cause like
prompt-cache-miss says which message changed."""

READS_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)

RunId = Annotated[str, Field(description="A run's id, a part of it, its name, or 'last'.")]
RequestId = Annotated[str, Field(description="A request's slowtok-id or the end of it, or 'last'.")]
Since = Annotated[
    str, Field(description="How far back: a length like '2h' or '7d', or a time in ISO 8601.")
]
RunOrNot = Annotated[str, Field(description="Only this run: its id or name.")]
ModelOrNot = Annotated[str, Field(description="Only requests of this model.")]
CauseOrNot = Annotated[str, Field(description="Only requests slowed by this cause.")]
AsJson = Annotated[bool, Field(description="All fields as JSON instead of readable text.")]


def run_mcp(options: Mapping[str, str | None]) -> int:
    """Serve until standard input ends. `options` are those of the command, for the tools'."""
    if sys.stdin.isatty():
        sys.stderr.write("slowtok mcp is for agents, which start it themselves: docs/agents.md\n")
    make_server(options).run("stdio")
    return 0


def make_server(options: Mapping[str, str | None]) -> MCPServer:
    """Return the server. `options` (`--listen`, `--log`, ...) say whose requests are told of."""
    server = MCPServer(
        "slowtok",
        title="slowtok: why was it slow?",
        instructions=INSTRUCTIONS,
        version=own_version() or "",
        log_level="WARNING",
    )
    tool = server.tool(annotations=READS_ONLY, structured_output=False)

    @tool
    async def list_runs(as_json: AsJson = False) -> str:
        """List agent runs, the newest first: how long each took, what it lost, what to fix."""
        return await said("runs", options, as_json=as_json)

    @tool
    async def explain_run(run: RunId = "last", as_json: AsJson = False) -> str:
        """Explain one agent run.

        Where its wall time went, what was lost to which cause, what to fix first and how long the
        run would then take, and each turn.
        """
        return await said("run", options, names=(run,), as_json=as_json)

    @tool
    async def list_requests(
        newest: Annotated[int, Field(ge=1, le=1000, description="How many.")] = 20,
        only_slow: Annotated[bool, Field(description="Only slow and failed ones.")] = False,
        run: RunOrNot = "",
        model: ModelOrNot = "",
        cause: CauseOrNot = "",
        as_json: AsJson = False,
    ) -> str:
        """List the newest requests, the last one at the end: timing, verdict and cause of each."""
        slow = ("--slow",) if only_slow else ()
        chosen = ("--no-follow", f"--lines={newest}", *slow, *only(run, model, cause))
        return await said("tail", options, *chosen, as_json=as_json)

    @tool
    async def explain_request(request: RequestId = "last", as_json: AsJson = False) -> str:
        """Explain one request.

        Where its time went, why it was slow with the evidence, what was ruled out, what could not
        be seen, and what to do.
        """
        which = () if request == "last" else (request,)
        return await said("explain", options, names=which, as_json=as_json)

    @tool
    async def what_to_fix_first(
        since: Since = "1d",
        run: RunOrNot = "",
        model: ModelOrNot = "",
        cause: CauseOrNot = "",
        as_json: AsJson = False,
    ) -> str:
        """Say what all requests of a time lost, by cause, model and run, and what to fix first."""
        chosen = (f"--since={since}", *only(run, model, cause))
        return await said("report", options, *chosen, as_json=as_json)

    @tool
    async def status(as_json: AsJson = False) -> str:
        """Say what the running slowtok sees: engines, models, GPUs, and what it cannot see."""
        return await said("status", options, as_json=as_json)

    @tool
    async def doctor(as_json: AsJson = False) -> str:
        """Look at this machine without traffic: what costs speed now. Takes some seconds."""
        return await said("doctor", options, as_json=as_json)

    @tool
    async def fit(
        model: Annotated[str, Field(description="A GGUF file, a folder, or a model's name.")],
        gpu: Annotated[str, Field(description="Like 'RTX 5090'; empty: the one present.")] = "",
        context: Annotated[int, Field(ge=1, description="Tokens of KV cache.")] = 4096,
        quant: Annotated[str, Field(description="Type of the weights, like Q4_K_M.")] = "",
        as_json: AsJson = False,
    ) -> str:
        """Say whether a model fits a GPU at a context, and what decode rate to expect."""
        chosen = (f"--context={context}", *given({"--gpu": gpu, "--quant": quant}))
        return await said("fit", options, *chosen, names=(model,), as_json=as_json)

    return server


TAKES = {
    "status": ("--listen", "--config"),
    "doctor": ("--listen", "--config", "--state-dir"),
    "fit": ("--listen", "--config", "--state-dir"),
}
"""Which options a command takes, where not all of them."""


def only(run: str, model: str, cause: str) -> list[str]:
    """Return the options that choose among requests; what is empty chooses nothing."""
    return given({"--run": run, "--model": model, "--cause": cause})


def given(options: Mapping[str, str]) -> list[str]:
    """Return options with their values, without those that are empty."""
    return [f"{name}={value}" for name, value in options.items() if value]


async def said(
    command: str,
    options: Mapping[str, str | None],
    *chosen: str,
    names: Sequence[str] = (),
    as_json: bool,
) -> str:
    """Return what a command prints; none of the `names` is taken for an option.

    Where it has found nothing to print, what it says of that; as JSON that is no line.

    Raises:
        ToolError: it failed; the text is its own.
    """
    taken = [
        f"{name}={value}"
        for name, value in options.items()
        if value is not None and name in TAKES.get(command, options)
    ]
    form = ("--json",) if as_json else ()
    try:
        with anyio.fail_after(LONGEST_S):
            done = await anyio.run_process(
                (*COMMAND, command, *taken, *form, *chosen, "--", *names),
                stdin=subprocess.DEVNULL,
                check=False,
                env={**os.environ, "NO_COLOR": "1", "COLUMNS": COLUMNS},
            )
    except TimeoutError:
        raise ToolError(f"slowtok {command} did not end within {LONGEST_S:.0f} s") from None
    if done.returncode:
        raise ToolError(_text(done.stderr) or f"slowtok {command} ended with {done.returncode}")
    printed = _text(done.stdout)
    return printed if printed or as_json else _text(done.stderr)


def _text(printed: bytes) -> str:
    return printed.decode(errors="replace").strip()
