"""Conversations of agents, as the bodies of requests."""

from typing import Any

Message = dict[str, Any]
SYSTEM = "You are a careful assistant. Answer shortly. Use tools where they help."
TASK = "How will the weather be in Rome on the next ten days?"


def step(number: int, of: str = "") -> list[Message]:
    """What one step adds: the call of a tool, and its result."""
    call = {"id": f"call-{of}{number}", "type": "function", "function": {"name": "weather"}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call-{of}{number}", "content": f"{number} degrees"},
    ]


def body(steps: int, *, system: str = SYSTEM, task: str = TASK, of: str = "") -> dict[str, Any]:
    """The request after so many steps."""
    messages: list[Message] = [
        {"role": "system", "content": system},
        {"role": "user", "content": task},
    ]
    for number in range(steps):
        messages += step(number, of)
    return {"model": "m", "messages": messages}
