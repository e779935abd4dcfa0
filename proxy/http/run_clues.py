"""Clues to which agent run a request belongs to, from its headers, base URL and body. Pure.

The ids are those of clients. They go no further than the process that groups requests, where a
keyed hash replaces them. docs/agents.md has the table of clients, with sources.
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
    """What a request says about its run. `ids` are pairs (source, id), most significant first.

    `agent` tells apart the agents of one run, `parent_agent` is the agent that started it, and
    `parent_session` the session that started this one.
    """

    ids: tuple[tuple[By, str], ...] = ()
    agent: str | None = None
    parent_agent: str | None = None
    parent_session: str | None = None
    client: str | None = None
    retry: int | None = None


def clues_of(
    fields: Iterable[tuple[str, str]], run_name: str | None, payload: Mapping[str, Any] | None
) -> Clues:
    """Return the clues of one request.

    Args:
        fields: its header.
        run_name: the name in its base URL, `…/run/NAME/v1`.
        payload: its body, if that could be read.
    """
    fields_by_name: dict[str, str] = {}
    other_session = None
    for spelling, value in fields:
        name = spelling.lower()
        if name in _READ:
            fields_by_name.setdefault(name, value.strip()[:MAX_ID_CHARS])
        elif other_session is None and name[-10:] == "session-id" and _ANY_SESSION.fullmatch(name):
            other_session = value.strip()[:MAX_ID_CHARS]
    session = _first(fields_by_name, _SESSION_HEADERS) or other_session
    body = _of_body(payload or {})
    candidates: tuple[tuple[By, str | None], ...] = (
        ("header", fields_by_name.get(RUN_HEADER)),
        ("url", run_name),
        ("session", session or body.session),
        ("prompt_cache_key", body.cache_key),
        ("previous_response_id", body.previous_response),
        ("conversation", body.conversation),
        ("metadata", body.metadata),
        ("trace", _trace(fields_by_name.get("traceparent"))),
    )
    return Clues(
        ids=tuple([(by, said_id) for by, said_id in candidates if said_id]),
        agent=_first(fields_by_name, _AGENT_HEADERS),
        parent_agent=_first(fields_by_name, _PARENT_AGENT_HEADERS),
        parent_session=_first(fields_by_name, _PARENT_SESSION_HEADERS),
        client=product_of(fields_by_name.get("user-agent")),
        retry=_count(fields_by_name.get(_RETRY_HEADER)),
    )


def split_run(raw_path: str) -> tuple[str | None, str]:
    """Return the run named in a base URL, and the target without it.

    `/run/NAME/v1/models` gives NAME and `/v1/models`. A target that would then be one of slowtok's
    own pages is returned unchanged: such a path must never reach an engine.
    """
    if not raw_path.startswith(URL_PREFIX):
        return None, raw_path
    name, slash, rest = raw_path[len(URL_PREFIX) :].partition("/")
    if not name or not slash or "?" in name or unquote(rest).lower().startswith("slowtok"):
        return None, raw_path
    return unquote(name), f"/{rest}"


def shown_name(name: str) -> str:
    """Return a client's name for a run as it may be displayed: bounded and printable."""
    plain = "".join(c if c.isprintable() else " " for c in name[:MAX_NAME_CHARS])
    return plain.encode("utf-8", "replace").decode().strip()


def product_of(user_agent: str | None) -> str | None:
    """Return `claude-cli` of the User-Agent `claude-cli/2.1.0 (external, cli)`, or None."""
    match = _PRODUCT.match(user_agent or "")
    return match[1][:MAX_PRODUCT_CHARS] if match else None


class _Body(NamedTuple):
    """The run ids found in a request body, by their kind."""

    session: str | None = None
    cache_key: str | None = None
    previous_response: str | None = None
    conversation: str | None = None
    metadata: str | None = None


def _of_body(payload: Mapping[str, Any]) -> _Body:
    conversation = payload.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    session = next((v for name in _BODY_SESSIONS if (v := _id(payload.get(name)))), None)
    metadata = payload.get("metadata")
    return _Body(
        session=session,
        cache_key=_id(payload.get("prompt_cache_key")),
        previous_response=_id(payload.get("previous_response_id")),
        conversation=_id(conversation),
        metadata=_of_metadata(metadata) if isinstance(metadata, dict) else None,
    )


def _of_metadata(metadata: Mapping[str, Any]) -> str | None:
    """Return the session id in `metadata`; Claude Code puts its own into Anthropic's `user_id`."""
    for name in _METADATA_KEYS:
        if session := _id(metadata.get(name)):
            return session
    user = _id(metadata.get("user_id"))
    if user is None:
        return None
    if inner := _CLAUDE_CODE_USER.search(user):
        return inner[1]
    if user.startswith("{"):
        try:
            claims = orjson.loads(user)
        except orjson.JSONDecodeError:
            return user
        return (_id(claims.get("session_id")) if isinstance(claims, dict) else None) or user
    return user


def _trace(traceparent: str | None) -> str | None:
    match = _TRACE.fullmatch(traceparent or "")
    return match[1] if match and match[1] != _NO_TRACE else None


def _first(fields_by_name: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := fields_by_name.get(name))), None)


def _id(value: Any) -> str | None:
    return value[:MAX_ID_CHARS] if isinstance(value, str) and value else None


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 4 else None
