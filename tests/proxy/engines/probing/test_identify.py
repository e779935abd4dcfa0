import socket
from collections.abc import Callable

import aiohttp
import orjson
import pytest
from aiohttp import web

from slowtok.proxy.engines.probing.facts import Identity, Kind
from slowtok.proxy.engines.probing.identify import PATHS, decide, identify
from slowtok.proxy.engines.probing.reply import ProbeReply

Recorded = Callable[[str], ProbeReply]
NOT_FOUND = ProbeReply(status=404, body=b"404 page not found")


def says(value: object, **headers: str) -> ProbeReply:
    return ProbeReply(status=200, headers=headers, body=orjson.dumps(value))


def owned_by(owner: str | None) -> ProbeReply:
    return says({"object": "list", "data": [{"id": "m", "owned_by": owner}]})


def replies(**changed: ProbeReply) -> dict[str, ProbeReply]:
    """Return 404 for every path but the ones changed (`v1_models` for `/v1/models`)."""
    names = {"/" + name.replace("__", "-").replace("_", "/"): r for name, r in changed.items()}
    return {path: names.get(path, NOT_FOUND) for path in PATHS}


# What must not be taken for a known engine.


def test_nothing_answers() -> None:
    assert decide({}) is None


def test_another_slowtok_is_told_from_the_engine_behind_it() -> None:
    through = ProbeReply(status=502, headers={"slowtok-id": "x"}, body=b"")
    found = decide(replies(version=through))
    assert found == Identity(kind="unknown", relayed=True)


def test_some_web_server_is_unknown() -> None:
    page = ProbeReply(status=200, headers={"server": "nginx"}, body=b"<html>Welcome</html>")
    assert decide(dict.fromkeys(PATHS, page)) == Identity(kind="unknown")


def test_a_single_page_app_that_answers_everything_is_unknown() -> None:
    assert decide(dict.fromkeys(PATHS, says({}))) == Identity(kind="unknown")
    assert decide(dict.fromkeys(PATHS, says([]))) == Identity(kind="unknown")


def test_a_server_that_imitates_ollama_but_owns_its_models_is_not_ollama() -> None:
    found = decide(replies(v1_models=owned_by("koboldcpp"), api_version=says({"version": "0.7.0"})))
    assert found == Identity(kind="openai")


def test_another_python_server_with_a_version_is_not_vllm() -> None:
    version = says({"version": "1.2"}, server="uvicorn")
    assert decide(replies(v1_models=owned_by("tabbyAPI"), version=version)) == Identity(
        kind="openai"
    )


def test_a_server_that_wants_a_key_and_shows_no_mark_is_unknown() -> None:
    refused = ProbeReply(status=401, body=b'{"error":{"message":"no key"}}')
    assert decide(dict.fromkeys(PATHS, refused)) == Identity(kind="unknown")


# The known ones.


def test_llama_server(llama_server_reply: Recorded) -> None:
    unknown_path = llama_server_reply("error-unknown-path")
    found = decide(
        dict.fromkeys(PATHS, unknown_path)
        | {
            "/v1/models": llama_server_reply("models"),
            "/props": llama_server_reply("props"),
            "/version": llama_server_reply("version"),
        }
    )
    assert found == Identity(kind="llama-server", version="b0-unknown")


def test_llama_server_while_it_loads() -> None:
    loading = ProbeReply(
        status=503, headers={"server": "llama.cpp"}, body=b'{"error":{"code":503}}'
    )
    assert decide(dict.fromkeys(PATHS, loading)) == Identity(kind="llama-server")


def test_llama_server_behind_a_server_that_hides_its_name(llama_server_reply: Recorded) -> None:
    bare = ProbeReply(
        status=200, headers={"server": "nginx"}, body=llama_server_reply("props").body
    )
    assert decide(replies(props=bare)) == Identity(kind="llama-server", version="b0-unknown")


def test_vllm(vllm_reply: Recorded) -> None:
    unknown_path = vllm_reply("error-unknown-path")
    found = decide(
        dict.fromkeys(PATHS, unknown_path)
        | {"/v1/models": vllm_reply("models"), "/version": vllm_reply("version")}
    )
    assert found == Identity(kind="vllm", version="0.32.0")


def test_vllm_whose_models_want_a_key(vllm_reply: Recorded) -> None:
    refused = ProbeReply(
        status=401, headers={"server": "uvicorn"}, body=b'{"error":"Unauthorized"}'
    )
    found = decide(replies(v1_models=refused, version=vllm_reply("version")))
    assert found == Identity(kind="vllm", version="0.32.0")


def test_llama_swap_is_itself_and_not_the_engine_that_it_starts(llama_swap_reply: Recorded) -> None:
    found = decide(
        dict.fromkeys(PATHS, llama_swap_reply("error-unknown-path"))
        | {
            "/v1/models": llama_swap_reply("models"),
            "/props": llama_swap_reply("props"),
            "/api/version": llama_swap_reply("version"),
            "/": llama_swap_reply("root"),
        }
    )
    assert found == Identity(kind="llama-swap", version="250")


def test_litellm_is_itself_although_its_models_are_openais(litellm_reply: Recorded) -> None:
    found = decide(
        dict.fromkeys(PATHS, litellm_reply("error-unknown-path"))
        | {"/v1/models": litellm_reply("models"), "/": litellm_reply("root")}
    )
    assert found == Identity(kind="litellm")


@pytest.mark.parametrize(
    ("owner", "kind"), [("lemonade", "lemonade"), ("docker", "docker-model-runner")]
)
def test_programs_that_start_engines_are_not_taken_for_one(owner: str, kind: Kind) -> None:
    props = says({"build_info": "b1"})  # as from an engine that they pass requests on to
    assert decide(replies(v1_models=owned_by(owner), props=props)) == Identity(kind=kind)


# Ollama, LM Studio and SGLang: written after their sources and clients, not recorded.


@pytest.mark.parametrize("models", [owned_by("library"), owned_by("someone"), says({"data": []})])
def test_ollama(models: ProbeReply) -> None:
    root = ProbeReply(status=200, body=b"Ollama is running")
    found = decide(replies(v1_models=models, api_version=says({"version": "0.33.0"})) | {"/": root})
    assert found == Identity(kind="ollama", version="0.33.0")


def test_lm_studio_which_answers_200_to_everything() -> None:
    unexpected = says({"error": "Unexpected endpoint or method. (GET /props)"})
    found = decide(
        dict.fromkeys(PATHS, unexpected)
        | {"/lmstudio-greeting": says({"lmstudio": True}), "/v1/models": says({"data": []})}
    )
    assert found == Identity(kind="lm-studio")


def test_sglang() -> None:
    assert decide(replies(v1_models=owned_by("sglang"))) == Identity(kind="sglang")


def test_another_server_of_the_same_interface() -> None:
    assert decide(replies(v1_models=owned_by(None))) == Identity(kind="openai")


# Over a real connection.


async def test_a_refused_connection_is_nothing() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
            assert await identify(session, url) is None


async def test_a_real_exchange_asks_by_get_alone(
    aiohttp_server: Callable[..., object], llama_server_reply: Recorded
) -> None:
    asked: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.method, request.path))
        known = {"/props": "props", "/v1/models": "models"}
        reply = llama_server_reply(known.get(request.path, "error-unknown-path"))
        return web.Response(
            status=reply.status, body=reply.body, headers={"Server": reply.headers["server"]}
        )

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    server = await aiohttp_server(app)  # type: ignore[misc]
    async with aiohttp.ClientSession() as session:
        found = await identify(session, str(server.make_url("/")))
    assert found == Identity(kind="llama-server", version="b0-unknown")
    assert {method for method, _ in asked} == {"GET"}
    assert sorted(path for _, path in asked) == sorted(PATHS)
