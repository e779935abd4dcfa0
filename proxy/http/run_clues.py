"""Reads what a request says of its run: in its headers, its base URL and its body. Pure.

The ids are foreign ones. They go no further than the process that groups requests, where a keyed
hash takes their place. docs/agents.md has the table of clients, with sources.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

import orjson

By = Literal[
    "header",
    "url",
    "session",
    "prompt_cache_key",
    "previous_response_id",
    "conversation",
    "metadata",
    "trace",
    "prompt",
]
"""What named a run, in the order of precedence. `header` and `url` are names that somebody gave;
`session` to `trace` are ids that clients send by themselves; `prompt` is a guess: the messages
begin with those of an earlier request."""

MAX_ID_CHARS = 512  # of a foreign id; a longer one is cut
MAX_NAME_CHARS = 64  # of a name that is shown
RUN_HEADER = "slowtok-run"
URL_PREFIX = "/run/"

# In the order in which they count, where a request has several. Each has its source in
# docs/agents.md.
_SESSION_HEADERS = (
    "x-claude-code-session-id",
    "x-opencode-session",
    "x-session-id",
    "session-id",
    "session_id",
    "x-session-affinity",
    "x-conversation-id",
    "conversation_id",
    "x-kilocode-taskid",
    "x-task-id",
)
_AGENT_HEADERS = ("x-claude-code-agent-id", "thread-id")
_PARENT_AGENT_HEADERS = ("x-claude-code-parent-agent-id", "x-codex-parent-thread-id")
_PARENT_SESSION_HEADERS = ("x-parent-session-id", "x-kilocode-parent-taskid")
_RETRY_HEADER = "x-stainless-retry-count"
_ANY_SESSION = re.compile(r"(?:x-)?[a-z0-9-]+-session-id")  # as many products call theirs
_READ = frozenset(
    {
        *_SESSION_HEADERS,
        *_AGENT_HEADERS,
        *_PARENT_AGENT_HEADERS,
        *_PARENT_SESSION_HEADERS,
        _RETRY_HEADER,
        RUN_HEADER,
        "traceparent",
        "user-agent",
    }
)
_METADATA_KEYS = ("session_id", "thread_id", "conversation_id", "run_id", "trace_id")
_BODY_SESSIONS = ("session_id", "litellm_session_id")
_CLAUDE_CODE_USER = re.compile(r"_session_([0-9A-Za-z-]{8,})$")
MAX_PRODUCT_CHARS = 40
_PRODUCT = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+)/[0-9A-Za-z]")
"""A product and its version (RFC 9110, section 10.1.5); a word alone may be anything, a key too."""
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_NO_TRACE = "0" * 32


class Clues(NamedTuple):
    """What a request says of its run. `ids` are (by, id), the one that counts first.

    `agent` tells the agents of one run apart; `parent_agent` is who started it, and
    `parent_session` the session that started this one.
    """

    ids: tuple[tuple[By, str], ...] = ()
    agent: str | None = None
    parent_agent: str | None = None
    parent_session: str | None = None
    client: str | None = None
    retry: int | None = None


def clues_of(
    fields: Iterable[tuple[str, str]], run_name: str | None, said: Mapping[str, Any] | None
) -> Clues:
    """Return the clues of one request.

    Args:
        fields: its header.
        run_name: the name in its base URL, `…/run/NAME/v1`.
        said: its body, where that could be read.
    """
    found: dict[str, str] = {}
    other_session = None
    for spelling, value in fields:
        name = spelling.lower()
        if name in _READ:
            found.setdefault(name, value.strip()[:MAX_ID_CHARS])
        elif other_session is None and name[-10:] == "session-id" and _ANY_SESSION.fullmatch(name):
            other_session = value.strip()[:MAX_ID_CHARS]
    session = _first(found, _SESSION_HEADERS) or other_session
    body = _of_body(said or {})
    candidates: tuple[tuple[By, str | None], ...] = (
        ("header", found.get(RUN_HEADER)),
        ("url", run_name),
        ("session", session or body.session),
        ("prompt_cache_key", body.cache_key),
        ("previous_response_id", body.previous_response),
        ("conversation", body.conversation),
        ("metadata", body.metadata),
        ("trace", _trace(found.get("traceparent"))),
    )
    return Clues(
        ids=tuple([(by, said_id) for by, said_id in candidates if said_id]),
        agent=_first(found, _AGENT_HEADERS),
        parent_agent=_first(found, _PARENT_AGENT_HEADERS),
        parent_session=_first(found, _PARENT_SESSION_HEADERS),
        client=product_of(found.get("user-agent")),
        retry=_count(found.get(_RETRY_HEADER)),
    )


def split_run(raw_path: str) -> tuple[str | None, str]:
    """Return the run that a base URL names, and the target without it.

    `/run/NAME/v1/models` gives NAME and `/v1/models`. What would then be one of slowtok's own
    pages stays as it is: such a path must never reach an engine.
    """
    if not raw_path.startswith(URL_PREFIX):
        return None, raw_path
    name, slash, rest = raw_path[len(URL_PREFIX) :].partition("/")
    if not name or not slash or "?" in name or unquote(rest).lower().startswith("slowtok"):
        return None, raw_path
    return unquote(name), f"/{rest}"


def shown_name(name: str) -> str:
    """Return a name that somebody gave as it may be shown: bounded, and printable."""
    plain = "".join(c if c.isprintable() else " " for c in name[:MAX_NAME_CHARS])
    return plain.encode("utf-8", "replace").decode().strip()


def product_of(user_agent: str | None) -> str | None:
    """Return `claude-cli` of `claude-cli/2.1.0 (external, cli)`; None where none is named so."""
    found = _PRODUCT.match(user_agent or "")
    return found[1][:MAX_PRODUCT_CHARS] if found else None


class _Body(NamedTuple):
    """The ids in a body, by what they are."""

    session: str | None = None
    cache_key: str | None = None
    previous_response: str | None = None
    conversation: str | None = None
    metadata: str | None = None


def _of_body(said: Mapping[str, Any]) -> _Body:
    conversation = said.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    session = next((v for name in _BODY_SESSIONS if (v := _id(said.get(name)))), None)
    metadata = said.get("metadata")
    return _Body(
        session=session,
        cache_key=_id(said.get("prompt_cache_key")),
        previous_response=_id(said.get("previous_response_id")),
        conversation=_id(conversation),
        metadata=_of_metadata(metadata) if isinstance(metadata, dict) else None,
    )


def _of_metadata(metadata: Mapping[str, Any]) -> str | None:
    """Return the session in the metadata; Claude Code puts its own into Anthropic's `user_id`."""
    for name in _METADATA_KEYS:
        if found := _id(metadata.get(name)):
            return found
    user = _id(metadata.get("user_id"))
    if user is None:
        return None
    if inner := _CLAUDE_CODE_USER.search(user):
        return inner[1]
    if user.startswith("{"):
        try:
            told = orjson.loads(user)
        except orjson.JSONDecodeError:
            return user
        return (_id(told.get("session_id")) if isinstance(told, dict) else None) or user
    return user


def _trace(traceparent: str | None) -> str | None:
    found = _TRACE.fullmatch(traceparent or "")
    return found[1] if found and found[1] != _NO_TRACE else None


def _first(found: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := found.get(name))), None)


def _id(value: Any) -> str | None:
    return value[:MAX_ID_CHARS] if isinstance(value, str) and value else None


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 4 else None
