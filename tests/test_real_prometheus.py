"""A real Prometheus scrapes the real proxy, and answers the queries of docs/metrics.md."""

import asyncio
import re
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.commands import served
from fakes.upstream import listening
from fakes.wire import JSON, reply
from slowtok.proxy.cli.demo.children import free_port

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="Prometheus is not installed"
)

ROOT = Path(__file__).resolve().parent.parent
WAIT_S = 30.0
CHAT = (
    b'{"model":"small","choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":2},'
    b'"timings":{"prompt_n":9,"prompt_ms":1,"predicted_n":2,"predicted_ms":1}}'
)
CONFIG = """
global: {scrape_interval: 1s}
scrape_configs:
  - job_name: slowtok
    metrics_path: /slowtok/metrics
    static_configs:
      - targets: ["ADDRESS"]
"""


@asynccontextmanager
async def prometheus(folder: Path, address: str) -> AsyncIterator[httpx.AsyncClient]:
    """Run one that scrapes the proxy at `address`, and a client for its API."""
    config, port = folder / "prometheus.yml", free_port()
    config.write_text(CONFIG.replace("ADDRESS", address))
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}/api/v1"
    try:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            yield client
    finally:
        process.terminate()
        await process.wait()


async def ask(client: httpx.AsyncClient, page: str, **said: str) -> Any:
    """What it answers, once it answers something."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        try:
            answer = (await client.get(page, params=said)).json()
        except httpx.TransportError:
            answer = None  # it is not up yet
        found = answer["data"] if answer and answer["status"] == "success" else None
        if isinstance(found, dict):
            found = found["result"]
        if found:
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"no answer to {page} {said}")


async def test_prometheus_reads_everything(tmp_path: Path) -> None:
    async with (
        listening("llama-server") as engine,
        served(tmp_path, "--upstream", engine.url) as running,
    ):
        engine.reply = reply(CHAT, JSON)
        address = await running.address()
        async with httpx.AsyncClient(trust_env=False) as user:
            chat = f"http://{address}/v1/chat/completions"
            answer = await user.post(chat, json={"model": "small", "messages": []})
        async with prometheus(tmp_path, address) as client:
            [requests] = await ask(client, "/query", query="slowtok_requests_total")
            assert requests["value"][1] == "1"
            assert requests["metric"]["model"] == "small"
            [up] = await ask(client, "/query", query="slowtok_engine_up")
            assert (up["value"][1], up["metric"]["kind"]) == ("1", "llama-server")
            [exemplars, *_] = await ask(
                client,
                "/query_exemplars",
                query="slowtok_request_seconds_bucket",
                start=str(time.time() - 60),
                end=str(time.time() + 60),
            )
            [exemplar] = exemplars["exemplars"]
            assert exemplar["labels"] == {"request_id": answer.headers["slowtok-id"]}
            for query in documented_queries():
                said = (await client.get("/query", params={"query": query})).json()
                assert said["status"] == "success", (query, said)
        assert await running.end() == 0


def documented_queries() -> list[str]:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    queries = re.findall(r"^```promql\n(.*?)\n```$", text, flags=re.DOTALL | re.MULTILINE)
    assert len(queries) >= 3
    return queries
