"""One whole reply out of the events of OpenAI's Responses API: the last of them carries it."""

from typing import Any

_LAST = ("response.completed", "response.incomplete", "response.failed")


class Response:
    """Takes the events in order, and keeps the response of the last one."""

    def __init__(self) -> None:
        self._response: dict[str, Any] | None = None

    def add(self, said: dict[str, Any]) -> None:
        """Take one event."""
        response = said.get("response")
        if said.get("type") in _LAST and isinstance(response, dict):
            self._response = response

    def whole(self) -> dict[str, Any] | None:
        """Return the response; None where it did not come to its end."""
        return self._response
