"""Agents of many frameworks, ten steps with a tool that takes its time: each is found as one run.

Nobody configures anything. A clock in the system prompt is the planted loss, where a framework lets
its prompt change between steps.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fakes.engine import real_engine
from fakes.frameworks import python_of
from fakes.running import RunningProxy, keep_ram_bandwidth, running_proxy
from fakes.scripted import CITY, NO_TOOLS, RESULT, STEPS, scripted_engine

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif("TEST_AGENTS" not in os.environ, reason="takes minutes: set TEST_AGENTS=1"),
    # several frameworks leave their connections to the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

TOOL_S = 0.1
RULES = " ".join(f"Rule {i}: answer question {i} shortly and kindly." for i in range(15))
TASK = "How will the weather be in Rome on each of the next ten days?"
REQUESTS = STEPS + 1
OF_A_BUSY_MACHINE = ("host-contention", "cpu-quota")  # true where others use the cores meanwhile
Ask = Callable[[str, Callable[[], str]], None]
WITH_TOOLS = """{%- for tool in tools or [] -%}{{ tool | tojson }}{%- endfor -%}
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content or '' }}<|im_end|>
{% endfor -%}
<|im_start|>assistant
"""


@pytest.fixture(scope="module")
def proxy(
    tmp_path_factory: pytest.TempPathFactory, ram_bytes_per_s: float
) -> Iterator[RunningProxy]:
    state = tmp_path_factory.mktemp("runs")
    keep_ram_bandwidth(state, ram_bytes_per_s)
    with serving(state) as running:
        yield running


@pytest.fixture(scope="module")
def forgetful(
    tmp_path_factory: pytest.TempPathFactory, ram_bytes_per_s: float
) -> Iterator[RunningProxy]:
    """A proxy to an engine that keeps no evicted prompt, and shows its model the tools."""
    state = tmp_path_factory.mktemp("forgetful")
    keep_ram_bandwidth(state, ram_bytes_per_s)
    template = state / "template.jinja"
    template.write_text(WITH_TOOLS, encoding="ascii")
    with serving(state, "--cache-ram", "0", "--chat-template-file", str(template)) as running:
        yield running


@contextlib.contextmanager
def serving(state: Path, *more: str) -> Iterator[RunningProxy]:
    with (
        real_engine(threads=1, slots=1, context=8192, alias="m", more=more) as engine,
        scripted_engine(engine.url) as scripted,
        running_proxy(state, scripted) as running,
    ):
        yield running


def weather(city: str) -> str:
    """Tell the weather of a city.

    Args:
        city: which one.
    """
    time.sleep(TOOL_S)
    return f"{RESULT} {city}"


SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Tell the weather.", "parameters": SCHEMA},
}


def by_openai(url: str, system: Callable[[], str]) -> None:
    openai = pytest.importorskip("openai")
    said: list[Any] = [{"role": "user", "content": TASK}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        while True:
            messages = [{"role": "system", "content": system()}, *said]
            answer = client.chat.completions.create(model="m", messages=messages, tools=[FUNCTION])
            message = answer.choices[0].message
            if not message.tool_calls:
                return
            said.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                result = weather(**json.loads(call.function.arguments))
                said.append({"role": "tool", "tool_call_id": call.id, "content": result})


def by_litellm(url: str, system: Callable[[], str]) -> None:
    litellm = pytest.importorskip("litellm", reason="make clients installs it")
    said: list[Any] = [{"role": "user", "content": TASK}]
    while True:
        messages = [{"role": "system", "content": system()}, *said]
        answer = litellm.completion(
            "openai/m", messages, api_base=f"{url}/v1", api_key="x", tools=[FUNCTION]
        )
        message = answer.choices[0].message
        if not message.tool_calls:
            return
        said.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = weather(**json.loads(call.function.arguments))
            said.append({"role": "tool", "tool_call_id": call.id, "content": result})


def by_anthropic(url: str, system: Callable[[], str]) -> None:
    anthropic = pytest.importorskip("anthropic", reason="make clients installs it")
    said: list[Any] = [{"role": "user", "content": TASK}]
    tool = {"name": "weather", "description": "Tell the weather.", "input_schema": SCHEMA}
    with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as client:
        while True:
            answer = client.messages.create(
                model="m", max_tokens=50, system=system(), messages=said, tools=[tool]
            )
            calls = [part for part in answer.content if part.type == "tool_use"]
            if not calls:
                return
            said.append({"role": "assistant", "content": [c.model_dump() for c in answer.content]})
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": weather(**call.input)}
                for call in calls
            ]
            said.append({"role": "user", "content": results})


def by_pydantic_ai(url: str, system: Callable[[], str]) -> None:
    ai = pytest.importorskip("pydantic_ai", reason="make clients installs it")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=f"{url}/v1", api_key="x")
    agent = ai.Agent(models.OpenAIChatModel("m", provider=provider), tools=[weather])
    agent.instructions(system)
    agent.run_sync(TASK)


def by_langgraph(url: str, system: Callable[[], str]) -> None:
    prebuilt = pytest.importorskip("langgraph.prebuilt", reason="make clients installs it")
    chat = pytest.importorskip("langchain_openai")
    model = chat.ChatOpenAI(model="m", base_url=f"{url}/v1", api_key="x", max_retries=0)
    agent = prebuilt.create_react_agent(
        model, [weather], prompt=lambda state: [("system", system()), *state["messages"]]
    )
    agent.invoke({"messages": [("user", TASK)]}, {"recursion_limit": 50})


def by_openai_agents(url: str, system: Callable[[], str]) -> None:
    agents = pytest.importorskip("agents", reason="make clients installs it")
    openai = pytest.importorskip("openai")
    agents.set_tracing_disabled(True)

    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
            agent = agents.Agent(
                name="forecaster",
                instructions=lambda _context, _agent: system(),
                model=agents.OpenAIChatCompletionsModel(model="m", openai_client=client),
                tools=[agents.function_tool(weather)],
            )
            await agents.Runner.run(agent, TASK, max_turns=2 * STEPS)

    asyncio.run(ask())


def by_smolagents(url: str, system: Callable[[], str]) -> None:
    smol = pytest.importorskip("smolagents", reason="make clients installs it")
    model = smol.OpenAIModel(model_id="m", api_base=f"{url}/v1", api_key="x")
    agent = smol.ToolCallingAgent(
        tools=[smol.tool(weather)], model=model, instructions=system(), max_steps=STEPS + 2
    )
    agent.run(TASK)


def by_framework(package: str, url: str, how: str, system: Callable[[], str]) -> None:
    """Let a framework's own interpreter run its agent, which is told the prompt of each step."""
    script = Path(__file__).parent / "frameworks" / f"ask_{package}.py"
    prompts = [system() for _ in range(2 * STEPS)]
    given = {"task": TASK, "tool_s": TOOL_S, "prompts": prompts, "max_steps": 2 * STEPS}
    with tempfile.TemporaryDirectory() as kept:
        ended = subprocess.run(
            [python_of(package), str(script), url, how],
            env={**os.environ, "HOME": kept, "CREWAI_DISABLE_TELEMETRY": "true"},
            input=json.dumps(given),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr


def by_llama_index(url: str, system: Callable[[], str]) -> None:
    by_framework("llama_index", url, "tools", system)


def by_llama_index_in_text(url: str, system: Callable[[], str]) -> None:
    by_framework("llama_index", url, "text", system)


def by_llama_index_handing_over(url: str, system: Callable[[], str]) -> None:
    by_framework("llama_index", url, "handoff", system)


def by_llama_index_with_tools_in_any_order(url: str, system: Callable[[], str]) -> None:
    by_framework("llama_index", url, "any-order", system)


def by_crewai(url: str, system: Callable[[], str]) -> None:
    by_framework("crewai", url, "m", system)


def by_crewai_in_text(url: str, system: Callable[[], str]) -> None:
    by_framework("crewai", url, NO_TOOLS, system)


OTHER_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"{what}_of_city",
            "description": f"Tell the {what} of a city, as its newest book tells it.",
            "parameters": SCHEMA,
        },
    }
    for what in ("history", "music", "food", "mayor", "river", "museum", "station", "harbour")
]


def by_openai_with_tools_in_any_order(url: str, system: Callable[[], str]) -> None:
    openai = pytest.importorskip("openai")
    said: list[Any] = [{"role": "user", "content": TASK}]
    dice = Random(7)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        for _ in range(REQUESTS):
            tools = dice.sample([FUNCTION, *OTHER_TOOLS], k=1 + len(OTHER_TOOLS))
            messages = [{"role": "system", "content": system()}, *said]
            answer = client.chat.completions.create(model="m", messages=messages, tools=tools)
            message = answer.choices[0].message
            said.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls or ():
                result = weather(**json.loads(call.function.arguments))
                said.append({"role": "tool", "tool_call_id": call.id, "content": result})


def by_openai_with_a_sub_agent(url: str, system: Callable[[], str]) -> None:
    """Between any two steps a sub-agent asks, whose prompt is another: there is one slot."""
    openai = pytest.importorskip("openai")
    said: list[Any] = [{"role": "user", "content": TASK}]
    helper = f"You check what others found, {system()[::-1]}"
    session = {"x-session-id": "main"}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        ask = client.chat.completions.create
        for number in range(REQUESTS):
            messages = [{"role": "system", "content": system()}, *said]
            answer = ask(model="m", messages=messages, tools=[FUNCTION], extra_headers=session)
            message = answer.choices[0].message
            said.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls or ():
                result = weather(**json.loads(call.function.arguments))
                said.append({"role": "tool", "tool_call_id": call.id, "content": result})
            ask(
                model="m",
                messages=[
                    {"role": "system", "content": helper},
                    {"role": "user", "content": f"Is step {number} right?"},
                ],
                extra_headers={"x-session-id": f"sub-{number}", "x-parent-session-id": "main"},
            )


CHANGING: list[Ask] = [
    by_openai,
    by_litellm,
    by_pydantic_ai,
    by_langgraph,
    by_openai_agents,
    by_llama_index,
    by_llama_index_in_text,
    by_crewai,
    by_crewai_in_text,
]
# llama-server puts no timings into whole replies of Anthropic's messages: what they lost is unknown
FIXED: list[Ask] = [by_anthropic, by_smolagents, by_llama_index_handing_over]


def run_of(
    proxy: RunningProxy, ask: Ask, system: Callable[[], str]
) -> tuple[dict[str, Any], float]:
    """Let an agent do its work; return its run in full, and how long its client saw it take."""
    before = {run["id"] for run in proxy.get("/slowtok/runs")["runs"]}
    begun_s = time.monotonic()
    ask(proxy.url, system)
    took_s = time.monotonic() - begun_s
    runs = [run for run in proxy.get("/slowtok/runs")["runs"] if run["id"] not in before]
    assert len(runs) == 1, [(run["id"], run["requests"]) for run in runs]
    found: dict[str, Any] = proxy.get(f"/slowtok/runs/{runs[0]['id']}")
    return found, took_s


def check(run: dict[str, Any], took_s: float) -> None:
    """The run is whole, and its parts are its wall time, which is the client's."""
    assert run["requests"] >= REQUESTS
    parts_ms = sum(run["split_ms"].values())
    assert parts_ms == pytest.approx(run["wall_ms"], rel=0.02)
    assert run["wall_ms"] / 1000 <= took_s + 0.01
    assert run["split_ms"]["client"] >= STEPS * TOOL_S * 1000 * 0.9
    assert [turn.get("parent") for turn in run["turns"][1:]] == list(range(1, run["requests"]))


@pytest.mark.parametrize("ask", CHANGING, ids=lambda ask: ask.__name__)
def test_a_clock_in_the_system_prompt_is_named_first(proxy: RunningProxy, ask: Ask) -> None:
    ticks = iter(range(1000))

    run, took_s = run_of(
        proxy, ask, lambda: f"It is 12:00:{next(ticks):03}, {ask.__name__}. {RULES}"
    )

    check(run, took_s)
    assert run["verdict"] == "slow"
    ours = [cause for cause in run["won_ms"] if cause not in OF_A_BUSY_MACHINE]
    assert ours[0] == "prompt-cache-miss"
    assert "date and time" in run["fix_first"]["hint"] or run["fix_first"]["cause"] != ours[0]
    assert run["split_ms"]["prefill_again"] > 0.3 * run["wall_ms"]
    assert run["wall_ms"] - run["won_ms"]["prompt-cache-miss"] < 0.7 * run["wall_ms"]


@pytest.mark.parametrize(
    "ask",
    [by_openai_with_tools_in_any_order, by_llama_index_with_tools_in_any_order],
    ids=lambda ask: ask.__name__,
)
def test_tools_in_any_order_are_named_first(forgetful: RunningProxy, ask: Ask) -> None:
    run, _ = run_of(forgetful, ask, lambda: f"In {CITY}. {RULES}")

    ours = [cause for cause in run["won_ms"] if cause not in OF_A_BUSY_MACHINE]
    assert ours[0] == "prompt-cache-miss"
    assert "sort its tools" in run["fix_first"]["hint"] or run["fix_first"]["cause"] != ours[0]


def test_a_sub_agent_that_evicts_is_named_first(forgetful: RunningProxy) -> None:
    run, _ = run_of(forgetful, by_openai_with_a_sub_agent, lambda: f"Main, in {CITY}. {RULES}")

    ours = [cause for cause in run["won_ms"] if cause not in OF_A_BUSY_MACHINE]
    assert ours[0] == "cache-evicted"
    assert all("cache-evicted" in turn["causes"] for turn in run["turns"][2:])
    assert {turn["parent"] for turn in run["turns"][1:]} > {1}, "the sub-agent is in the same run"


@pytest.mark.parametrize("ask", [*CHANGING[2:], *FIXED], ids=lambda ask: ask.__name__)
def test_a_prompt_that_only_grows_loses_nothing(proxy: RunningProxy, ask: Ask) -> None:
    mine = RULES.replace("Rule", ask.__name__)  # another's prompt that is much the same is compared

    run, took_s = run_of(proxy, ask, lambda: f"{CITY}: {mine}")

    check(run, took_s)
    # CrewAI's own words stood in the prompts of other tests: the run's first answer reads them anew
    later = run["turns"][1 + (ask is by_crewai_in_text) :]
    again_ms = sum(turn["split_ms"].get("prefill_again", 0.0) for turn in later)
    assert again_ms < 0.1 * run["wall_ms"]
