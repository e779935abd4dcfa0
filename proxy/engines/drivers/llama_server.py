"""llama.cpp's server: what it answers about itself, alone or as a router of several models.

Nothing here asks `/slots`: that wakes a sleeping model, and any task put in the queue keeps one
from falling asleep. A router loads the model that `?model=` names, also for a GET, unless
`autoload=false` stands beside it; then it answers with an error (tools/server/server-models.cpp).
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import aiohttp

from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.drivers.llama_flags import parse_flags
from slowtok.proxy.engines.probing.facts import Loaded, Probe
from slowtok.proxy.engines.probing.reply import ProbeReply, get

__all__ = ["is_sleeping", "parse_flags", "probe", "read_probe", "router_query"]

IN_MEMORY = frozenset({"loaded", "sleeping"})

HABITS = {
    "thinking": re.compile(
        r"last_query_index|(?:split|rsplit)\(\s*['\"]</think>|not\s+loop\.last[^%]*think|"
        r"future_final_message|last_tool_call\.name\s+is\s+none.{0,400}analysis",
        re.DOTALL,
    ),
    "tools-last": re.compile(
        r"(?:loop\.last|messages\s*\|\s*length|messages\[-1\]|user_messages\[-1\])"
        r"[^%]{0,200}%\}.{0,400}AVAILABLE_TOOLS",
        re.DOTALL,
    ),
    "clock": re.compile(r"strftime_now"),
}
"""How a chat template treats earlier turns, by what its text has. The text is the model's, not a
user's; still only the habits found in it are kept.

- `thinking`: thoughts are left out of earlier turns (Qwen3 and its successors compare with the last
  question's place, DeepSeek's and others split at the closing tag).
- `tools-last`: the tools, or the system's word, stand before the last question (Mistral's).
- `clock`: the date is written into the prompt (Llama 3.1 and later, gpt-oss).

Sources: the templates in the repositories of these models; QwenLM/Qwen3#1826.
"""


async def probe(session: aiohttp.ClientSession, base_url: str) -> Probe:
    """Return what `/props` and `/v1/models` say; neither loads nor wakes a model."""
    props, models = await asyncio.gather(
        get(session, base_url, "/props"), get(session, base_url, "/v1/models")
    )
    if not _is_router(props, models):
        return read_probe(props, models)
    names = [str(entry.get("id")) for entry in _entries(models) if _state(entry) == "loaded"]
    told = await asyncio.gather(
        *(get(session, base_url, f"/props?{router_query(name)}") for name in names)
    )
    return read_probe(props, models, dict(zip(names, told, strict=True)))


async def is_sleeping(session: aiohttp.ClientSession, base_url: str) -> bool | None:
    """Ask whether the model is put away: answered without waking it; None where it is not told."""
    sleeping = _object(await get(session, base_url, "/props")).get("is_sleeping")
    return sleeping if isinstance(sleeping, bool) else None


def router_query(model: str) -> str:
    """Return the query by which a router answers for a model that it has loaded, and only then."""
    return urlencode({"model": model, "autoload": "false"})


def read_probe(
    props: ProbeReply | None,
    models: ProbeReply | None,
    of_model: Mapping[str, ProbeReply | None] | None = None,
) -> Probe:
    """Return what the replies say; any may be missing. `of_model` are a router's, by model."""
    about, entries = _object(props), _entries(models)
    names = tuple(entry["id"] for entry in entries if isinstance(entry.get("id"), str))
    loading = any(reply is not None and reply.status == 503 for reply in (props, models))
    if _is_router(props, models):
        return Probe(
            version=about.get("build_info"),
            models=names,
            loading=loading,
            loaded=tuple(_loaded(entries, of_model or {})) if entries else None,
        )
    settings = _dict(about.get("default_generation_settings"))
    meta = _dict(entries[0].get("meta")) if len(entries) == 1 else {}
    return Probe(
        version=about.get("build_info"),
        models=names,
        model_path=about.get("model_path") or None,
        quantisation=about.get("model_ftype") or meta.get("ftype"),
        parameters=meta.get("n_params"),
        weight_bytes=meta.get("size"),
        context_tokens=settings.get("n_ctx") or meta.get("n_ctx"),
        slots=about.get("total_slots"),
        speculative=_speculative(settings),
        sleeping=about.get("is_sleeping"),
        loading=loading,
        template_habits=habits_of(about.get("chat_template")),
    )


def _loaded(
    entries: Sequence[Mapping[str, Any]], of_model: Mapping[str, ProbeReply | None]
) -> list[Loaded]:
    return [
        _one_loaded(entry, _object(of_model.get(str(entry.get("id")))))
        for entry in entries
        if _state(entry) in IN_MEMORY
    ]


def _one_loaded(entry: Mapping[str, Any], about: Mapping[str, Any]) -> Loaded:
    status, meta = _dict(entry.get("status")), _dict(entry.get("meta"))
    settings = _dict(about.get("default_generation_settings"))
    argv = tuple(word for word in _list(status.get("args")) if isinstance(word, str))
    path = about.get("model_path") or parse_flags(argv, {}).model_path
    return Loaded(
        name=str(entry.get("id")),
        aliases=tuple(name for name in _list(entry.get("aliases")) if isinstance(name, str)),
        path=path,
        context_tokens=settings.get("n_ctx") or meta.get("n_ctx"),
        slots=about.get("total_slots"),
        speculative=_speculative(settings),
        sleeping=about.get("is_sleeping", _state(entry) == "sleeping"),
        argv=argv,
        template_habits=habits_of(about.get("chat_template")),
        model=ModelFacts(
            path=path,
            quantisation=about.get("model_ftype") or meta.get("ftype"),
            parameters=meta.get("n_params"),
            file_bytes=meta.get("size"),
        ),
    )


def _is_router(props: ProbeReply | None, models: ProbeReply | None) -> bool:
    says_so = _object(props).get("role") == "router"
    return says_so or any(_state(entry) is not None for entry in _entries(models))


def _state(entry: Mapping[str, Any]) -> object:
    return _dict(entry.get("status")).get("value")


def _speculative(settings: Mapping[str, Any]) -> bool | None:
    types = _dict(settings.get("params")).get("speculative.types")
    return None if not isinstance(types, str) else types != "none"


def _entries(models: ProbeReply | None) -> list[Mapping[str, Any]]:
    return [_dict(entry) for entry in _list(_object(models).get("data"))]


def _object(reply: ProbeReply | None) -> Mapping[str, Any]:
    return {} if reply is None else _dict(reply.json)


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def habits_of(template: object) -> tuple[str, ...] | None:
    """Return what a template does to earlier turns; None where there is no text of one."""
    if not isinstance(template, str) or not template:
        return None
    return tuple([habit for habit, pattern in HABITS.items() if pattern.search(template)])
