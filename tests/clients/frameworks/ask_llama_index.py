"""An agent of LlamaIndex, run by LlamaIndex's own interpreter: `python ask_llama_index.py URL HOW`.

Standard input has the task, how long the tool takes, and the system prompt of each step, as JSON.
"""

import asyncio
import json
import sys
import time
from random import Random
from typing import Any

from llama_index.core.agent.react import ReActChatFormatter
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.objects import ObjectRetriever
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

URL, HOW = sys.argv[1:]
GIVEN = json.load(sys.stdin)
PROMPTS = iter(GIVEN["prompts"])
OTHERS = ("history", "music", "food", "mayor", "river", "museum", "station", "harbour")
DICE = Random(7)


def weather(city: str) -> str:
    """Tell the weather of a city.

    Args:
        city: which one.
    """
    time.sleep(GIVEN["tool_s"])
    tell_the_prompt(next(PROMPTS))
    return f"warm in {city}"


def tell_the_prompt(prompt: str) -> None:
    """Let the agent's next step begin with `prompt`; one that acts in text ignores its own."""
    if HOW == "text":
        agent.formatter = ReActChatFormatter.from_context(prompt)
    else:
        agent.system_prompt = prompt


class AnyOrder(ObjectRetriever[FunctionTool]):  # type: ignore[misc]  # its types are not here
    """Retrieves all tools for each step, in another order each time."""

    def __init__(self) -> None:
        """Nothing is asked of an index: what it holds is known."""

    async def aretrieve(self, _query: str) -> list[FunctionTool]:
        return DICE.sample(TOOLS, k=len(TOOLS))


def named(what: str) -> FunctionTool:
    described = f"Tell the {what} of a city, as its newest book tells it."
    return FunctionTool.from_defaults(weather, name=f"{what}_of_city", description=described)


TOOLS = [FunctionTool.from_defaults(weather), *map(named, OTHERS)]
model = OpenAILike(
    model="m",
    api_base=f"{URL}/v1",
    api_key="x",
    is_chat_model=True,
    is_function_calling_model=HOW != "text",
    context_window=8192,
    timeout=300,  # a busy machine reads a long prompt for more than its minute
    max_retries=0,
)
about: Any = {"name": "forecaster", "description": "Knows the weather.", "llm": model}
tools: Any = {"tool_retriever": AnyOrder()} if HOW == "any-order" else {"tools": [weather]}
agent: Any = (ReActAgent if HOW == "text" else FunctionAgent)(**about, **tools)
tell_the_prompt(next(PROMPTS))
workflow: Any = agent
if HOW == "handoff":
    clerk = FunctionAgent(
        name="clerk",
        description="Takes questions.",
        llm=model,
        system_prompt="You take questions, and hand each of them to who knows the answer.",
        can_handoff_to=["forecaster"],
    )
    workflow = AgentWorkflow(agents=[clerk, agent], root_agent="clerk")


async def ask() -> None:
    """Run the agent until it answers."""
    await workflow.run(GIVEN["task"], max_iterations=GIVEN["max_steps"])


asyncio.run(ask())
