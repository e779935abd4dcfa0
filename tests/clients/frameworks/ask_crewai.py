"""A crew of CrewAI, run by CrewAI's own interpreter: `python ask_crewai.py URL MODEL`.

Standard input has the task, how long the tool takes, and the system prompt of each step, as JSON.
"""

import json
import sys
import time
from typing import Any

import crewai
from crewai.hooks import register_before_llm_call_hook
from crewai.tools import tool

URL, MODEL = sys.argv[1:]
GIVEN = json.load(sys.stdin)
FIRST, *LATER = GIVEN["prompts"]
steps = iter(zip([FIRST, FIRST, *LATER], [FIRST, *LATER], strict=False))


def weather(city: str) -> str:
    """Tell the weather of a city."""
    time.sleep(GIVEN["tool_s"])
    return f"warm in {city}"


def tell_the_prompt(context: Any) -> None:
    """Put the prompt of this step in the place of the one before."""
    system = context.messages[0]
    system["content"] = system["content"].replace(*next(steps))


register_before_llm_call_hook(tell_the_prompt)
agent = crewai.Agent(
    role="forecaster",
    goal="tell the weather",
    backstory=FIRST,
    llm=crewai.LLM(model=f"openai/{MODEL}", base_url=f"{URL}/v1", api_key="x"),
    tools=[tool(weather)],
    max_iter=GIVEN["max_steps"],
)
task = crewai.Task(description=GIVEN["task"], expected_output="a sentence", agent=agent)
crewai.Crew(agents=[agent], tasks=[task]).kickoff()
