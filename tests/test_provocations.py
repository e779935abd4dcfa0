"""Each cause that a machine without a GPU can show, really provoked on a real llama-server.

What is asserted is the verdict, the cause and where its evidence lies: not how slow this machine
happens to be.
"""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from fakes.cgroups import cpu_quota, memory_group
from fakes.engine import RunningEngine, real_engine
from fakes.load import busy_processes
from fakes.random_model import dense, mixture, windowed
from fakes.running import (
    DECODE_TOKENS,
    STORY,
    Answer,
    RunningProxy,
    chat,
    keep_ram_bandwidth,
    running_proxy,
)
from fakes.slow_client import read_slowly
from fakes.slow_line import buffering_line, slow_line
from slowtok.proxy.cli.demo.model import fetch_model

# What else this machine does in those seconds is not ours: a wrong verdict counts when it stays.
pytestmark = [pytest.mark.engine, pytest.mark.engine_speed]

WEIGHTS_THAT_FIT_BYTES = 60 * 1024 * 1024  # of 92 MiB
GIB = 2**30
CORES = len(os.sched_getaffinity(0))


@contextmanager
def setup(
    tmp_path: Path, ram_bytes_per_s: float, **engine: Any
) -> Iterator[tuple[RunningEngine, RunningProxy]]:
    """A real engine with a real proxy in front of it."""
    keep_ram_bandwidth(tmp_path, ram_bytes_per_s)
    with (
        real_engine(**{"threads": CORES, "slots": 1, "context": 4096, **engine}) as running,
        running_proxy(tmp_path, running.url) as proxy,
    ):
        yield running, proxy


def judged(answer: Answer) -> str:
    record = answer.record
    return f"{record['verdict']} {record.get('phase')} {answer.causes} {record.get('reason')}"


def test_an_idle_machine_decodes_normally(tmp_path: Path, ram_bytes_per_s: float) -> None:
    with setup(tmp_path, ram_bytes_per_s) as (_, proxy):
        answers = [proxy.ask(chat(stream=stream)) for stream in (True, False)]

    for answer in answers:
        assert answer.record["verdict"] == "normal", judged(answer)
        assert answer.causes == []
        assert "cpu-fallback" in answer.record["cleared"]


def test_other_processes_on_all_cores(tmp_path: Path, ram_bytes_per_s: float) -> None:
    with setup(tmp_path, ram_bytes_per_s) as (_, proxy), busy_processes(2 * CORES):
        answer = proxy.ask(chat(tokens=40, stream=True))

    assert answer.record.get("phase") == "decode", judged(answer)
    assert answer.causes[0] == "host-contention"
    evidence = [e["name"] for e in answer.record["findings"][0]["evidence"]]
    assert any(name.startswith("CPU used by python") for name in evidence), evidence


def test_the_first_request_beside_one_busy_neighbour_with_no_figure_for_the_ram(
    tmp_path: Path,
) -> None:
    with (
        real_engine(threads=CORES, slots=1, context=4096) as engine,
        busy_processes(1),
        running_proxy(tmp_path, engine.url) as proxy,
    ):
        answer = proxy.ask(chat(tokens=150, stream=True))

    assert answer.record["verdict"] == "slow", judged(answer)
    assert answer.causes[0] == "host-contention"


@pytest.mark.long
def test_a_hog_that_begins_in_mid_stream_beside_a_standing_cause(
    tmp_path: Path, ram_bytes_per_s: float
) -> None:
    """One thread is too few for this machine, always; what is new explains the new loss."""
    with setup(tmp_path, ram_bytes_per_s, threads=1) as (_, proxy), ThreadPoolExecutor() as pool:
        for _ in range(3):
            proxy.ask(chat(tokens=100, stream=True))
        asked = pool.submit(proxy.ask, chat(tokens=DECODE_TOKENS, stream=True))
        time.sleep(1.0)  # into the stream
        with busy_processes(3 * CORES):
            answer = asked.result()

    assert answer.record.get("phase") == "decode", judged(answer)
    assert answer.causes[0] == "host-contention", judged(answer)


def test_a_quota_on_the_server(tmp_path: Path, ram_bytes_per_s: float) -> None:
    with (
        setup(tmp_path, ram_bytes_per_s) as (engine, proxy),
        cpu_quota(engine.pid, 0.4 * CORES),
    ):
        answer = proxy.ask(chat(tokens=150, stream=True))

    assert answer.record.get("phase") == "decode", judged(answer)
    assert answer.causes[0] == "cpu-quota"


def test_more_threads_than_cores(tmp_path: Path, ram_bytes_per_s: float) -> None:
    with setup(tmp_path, ram_bytes_per_s, threads=8 * CORES) as (_, proxy):
        answer = proxy.ask(chat(tokens=150, stream=True))

    assert answer.record.get("phase") == "decode", judged(answer)
    assert answer.causes[0] == "threads-misconfigured"
    assert f"--threads {CORES}" in answer.record["findings"][0]["remedy"]


def test_a_request_behind_another(tmp_path: Path, ram_bytes_per_s: float) -> None:
    with setup(tmp_path, ram_bytes_per_s) as (engine, proxy), ThreadPoolExecutor() as pool:
        first = pool.submit(proxy.ask, chat(tokens=2 * DECODE_TOKENS, stream=True))
        until_processing(engine)
        second = proxy.ask(chat("Name three colours.", tokens=16, stream=True))
        first.result()

    assert second.record.get("phase") == "queue", judged(second)
    assert second.causes == ["queued"]
    assert first.result().record["verdict"] == "normal", judged(first.result())


def test_a_request_behind_one_that_goes_past_the_proxy(
    tmp_path: Path, ram_bytes_per_s: float
) -> None:
    with setup(tmp_path, ram_bytes_per_s) as (engine, proxy), ThreadPoolExecutor() as pool:
        proxy.ask(chat(tokens=8))  # the proxy knows its engine by now
        url = f"{engine.url}/v1/chat/completions"
        past = pool.submit(httpx.post, url, json=chat(tokens=2 * DECODE_TOKENS), timeout=300)
        until_processing(engine)
        answer = proxy.ask(chat("Name three colours.", tokens=16, stream=True))
        assert past.result().status_code == 200

    assert answer.record.get("phase") == "queue", judged(answer)
    assert answer.causes == ["queued"]
    assert "did not come through this proxy" in answer.record["findings"][0]["summary"]


@pytest.mark.long
def test_four_at_once_on_two_slots(tmp_path: Path, ram_bytes_per_s: float) -> None:
    with (
        setup(tmp_path, ram_bytes_per_s, slots=2, context=8192) as (_, proxy),
        ThreadPoolExecutor() as pool,
    ):
        requests = [chat(f"{STORY} Number {i}.", stream=True) for i in range(4)]
        answers = list(pool.map(proxy.ask, requests))

    waited = [answer for answer in answers if answer.record["timing"]["queue_ms"] > 500]
    assert len(waited) == 2, [judged(answer) for answer in answers]
    for answer in waited:
        assert answer.record["phase"] == "queue", judged(answer)
        assert answer.causes[0] == "queued"


@pytest.mark.parametrize(
    "past_the_proxy",
    [False, pytest.param(True, marks=pytest.mark.long)],
    ids=["through the proxy", "past it"],
)
def test_a_short_chat_behind_a_long_prompt_with_a_slot_free(
    past_the_proxy: bool, tmp_path: Path, ram_bytes_per_s: float
) -> None:
    rules = " ".join(f"Rule {i}: be kind to dragon number {i}." for i in range(330))
    with (
        setup(tmp_path, ram_bytes_per_s, slots=2, context=16_384) as (engine, proxy),
        ThreadPoolExecutor() as pool,
    ):
        proxy.ask(chat(tokens=8))  # the proxy knows its engine by now
        url = f"{engine.url if past_the_proxy else proxy.url}/v1/chat/completions"
        body = chat(rules, tokens=4, stream=True)
        long = pool.submit(httpx.post, url, json=body, timeout=300)
        until_processing(engine)
        answer = proxy.ask(chat("Name three colours.", tokens=16, stream=True))
        other = long.result().headers.get("slowtok-id")

    found = {finding["cause"]: finding for finding in answer.record["findings"]}
    assert answer.record["phase"] in ("queue", "prefill"), judged(answer)
    assert "batch-shared" in found, judged(answer)
    assert "queued" not in found
    whose = "did not come through this proxy" if past_the_proxy else f"request {other}"
    assert whose in found["batch-shared"]["summary"]


@pytest.mark.long
def test_streams_that_share_the_batch(tmp_path: Path, ram_bytes_per_s: float) -> None:
    with (
        setup(tmp_path, ram_bytes_per_s, slots=4, context=8192) as (_, proxy),
        ThreadPoolExecutor() as pool,
    ):
        requests = [chat(f"{STORY} Number {i}.", stream=True) for i in range(4)]
        answers = list(pool.map(proxy.ask, requests))

    assert "batch-shared" in {cause for answer in answers for cause in answer.causes[:1]}
    for answer in answers:
        assert set(answer.causes) <= {"batch-shared"}, judged(answer)


def test_a_batch_shared_with_streams_that_go_past_the_proxy(
    tmp_path: Path, ram_bytes_per_s: float
) -> None:
    with (
        setup(tmp_path, ram_bytes_per_s, slots=4, context=8192) as (engine, proxy),
        ThreadPoolExecutor() as pool,
    ):
        proxy.ask(chat(tokens=8))  # the proxy knows its engine by now
        url = f"{engine.url}/v1/chat/completions"
        past = [pool.submit(httpx.post, url, json=chat(), timeout=120) for _ in range(3)]
        until_processing(engine)
        answer = proxy.ask(chat(tokens=DECODE_TOKENS // 2, stream=True))
        assert [reply.result().status_code for reply in past] == [200, 200, 200]

    assert answer.record.get("phase") == "decode", judged(answer)
    assert answer.causes == ["batch-shared"]


def test_a_prompt_whose_start_changes(tmp_path: Path, ram_bytes_per_s: float) -> None:
    rules = " ".join(f"Rule {i}: be kind to dragon number {i}." for i in range(120))
    with setup(tmp_path, ram_bytes_per_s) as (_, proxy):
        for clock in ("08:00:01", "08:00:02"):
            system = {"role": "system", "content": f"{'x' * 70} it is {clock}. {rules}"}
            turn = chat(tokens=8, stream=True)
            answer = proxy.ask({**turn, "messages": [system, *turn["messages"]]})

    assert answer.record.get("phase") == "prefill", judged(answer)
    assert answer.causes == ["prompt-cache-miss"]
    evidence = {e["name"]: e["value"] for e in answer.record["findings"][0]["evidence"]}
    offset = next(value for name, value in evidence.items() if name == "first difference")
    assert 67 <= offset <= 83  # the seconds stand at 83, told to 16 characters
    assert "a date or time changes" in answer.record["findings"][0]["summary"]
    assert "Rule 1" not in str(answer.record)


@pytest.mark.long
def test_a_model_that_was_put_to_sleep(tmp_path: Path, ram_bytes_per_s: float) -> None:
    with setup(tmp_path, ram_bytes_per_s, sleep_idle_s=1) as (engine, proxy):
        proxy.ask(chat(tokens=8))
        engine.wait_until_asleep()
        until_known_asleep(proxy)
        with cpu_quota(engine.pid, 0.1):  # a slow disk or CPU: loading takes over a second
            answer = proxy.ask(chat(tokens=8, stream=True))

    assert answer.record.get("phase") == "load", judged(answer)
    assert answer.causes[0] == "model-load"


@pytest.mark.long
def test_weights_that_do_not_stay_in_memory(tmp_path: Path, ram_bytes_per_s: float) -> None:
    model = uncached_copy(fetch_model(), tmp_path)
    with (
        memory_group() as group,
        setup(tmp_path, ram_bytes_per_s, model=model, within=group.within) as (engine, proxy),
    ):
        proxy.ask(chat(tokens=8))  # every page of the model has been touched once
        group.limit(anonymous_bytes(engine.pid) + WEIGHTS_THAT_FIT_BYTES)
        answer = proxy.ask(chat(tokens=64, stream=True))

    assert answer.record.get("phase") == "decode", judged(answer)
    assert answer.causes[0] == "storage-paging"


@pytest.mark.long
def test_weights_of_several_gigabytes_in_ram_and_from_the_disk(
    tmp_path: Path, ram_bytes_per_s: float
) -> None:
    """Nine layers of random weights, 4.5 GiB: the RAM decides, and under a limit the disk."""
    if shutil.disk_usage(tmp_path).free < 10 * GIB or psutil.virtual_memory().available < 8 * GIB:
        pytest.skip("no room for a model of 4.5 GiB")
    model = uncached(dense(tmp_path / "random.gguf", width=4096, layers=9))
    try:
        with (
            memory_group() as group,
            setup(tmp_path, ram_bytes_per_s, model=model, within=group.within) as (engine, proxy),
        ):
            in_ram = proxy.ask(chat(tokens=30, stream=True))
            group.limit(anonymous_bytes(engine.pid) + 3 * GIB)
            from_disk = proxy.ask(chat(tokens=6, stream=True))
    finally:
        model.unlink()

    assert {*in_ram.causes} <= {"host-contention"}, judged(in_ram)
    assert in_ram.record["expected"]["basis"].startswith("roofline, weights 4.53 GiB")
    assert from_disk.record.get("phase") == "decode", judged(from_disk)
    assert from_disk.causes[0] == "storage-paging"
    assert "raise the memory limit" in from_disk.record["findings"][0]["remedy"]


@pytest.mark.long
def test_a_client_that_does_not_read(tmp_path: Path, ram_bytes_per_s: float) -> None:
    with setup(tmp_path, ram_bytes_per_s) as (engine, proxy):

        def until_long_after_the_end() -> None:
            until_idle(engine)
            threading.Event().wait(8.0)  # longer than decode loses to whoever else has the cores

        asked = chat(tokens=300, stream=True, logprobs=True, top_logprobs=20)
        request_id = read_slowly(proxy.url, asked, until_long_after_the_end)
        record = proxy.record(request_id)

    assert record.get("phase") == "delivery", record
    assert record["findings"][0]["cause"] == "slow-reader", record["findings"]


def test_a_slow_line_to_the_engine(tmp_path: Path, ram_bytes_per_s: float) -> None:
    keep_ram_bandwidth(tmp_path, ram_bytes_per_s)
    with (
        real_engine(threads=CORES, slots=1) as engine,
        slow_line(engine.url, 10_000) as address,
        running_proxy(tmp_path, address) as proxy,
    ):
        answer = proxy.ask(chat(tokens=100, stream=True, logprobs=True, top_logprobs=5))

    assert answer.record.get("phase") == "delivery", judged(answer)
    # what else had the cores in these seconds may stand behind it
    assert answer.causes[0] == "slow-network", [f["summary"] for f in answer.record["findings"]]
    timing = answer.record["timing"]
    assert timing["decode_stream_ms"] > 1.5 * timing["decode_ms"]


def test_a_proxy_in_between_that_buffers(tmp_path: Path, ram_bytes_per_s: float) -> None:
    keep_ram_bandwidth(tmp_path, ram_bytes_per_s)
    with (
        real_engine(threads=CORES, slots=1) as engine,
        buffering_line(engine.url) as address,
        running_proxy(tmp_path, address) as proxy,
    ):
        answer = proxy.ask(chat(stream=True))

    informing = [f["cause"] for f in answer.record["findings"] if f.get("informational")]
    assert informing == ["slow-network"], judged(answer)
    assert answer.record.get("phase") != "delivery", "the end came no later"


@pytest.mark.parametrize("options", [["-ncmoe", "3"], ["--cpu-moe"], ["-ot", "exps=CPU"]])
def test_experts_that_were_told_to_stay_in_ram_where_all_is_there(
    options: list[str], tmp_path: Path, ram_bytes_per_s: float
) -> None:
    model = mixture(tmp_path / "random.gguf")
    with setup(tmp_path, ram_bytes_per_s, model=model, gpu_layers=None, more=options) as (_, proxy):
        answer = proxy.ask(chat(tokens=100, stream=True))
        (engine,) = proxy.get("/slowtok/status")["engines"]

    assert {*answer.causes} <= {"host-contention"}, judged(answer)
    asked = {"-ncmoe": 3, "--cpu-moe": 999, "-ot": 999}
    assert engine.get("cpu_moe_layers") == asked[options[0]]
    (facts,) = engine["models"]
    assert facts["active_parameters"] < 0.35 * facts["parameters"]  # mostly its embedding
    read_mib = facts["read_bytes"] / 2**20
    assert f"weights {read_mib:.1f} MiB" in answer.record["expected"]["basis"]


@pytest.mark.long
def test_a_draft_model_whose_tokens_are_thrown_away(tmp_path: Path, ram_bytes_per_s: float) -> None:
    """Its weights are random: the engine drafts three tokens for each step, and takes none."""
    options = ["--model-draft", str(windowed(tmp_path / "draft.gguf"))]
    with setup(tmp_path, ram_bytes_per_s, threads=1, more=options) as (_, proxy):
        answer = proxy.ask(chat(tokens=200))

    tokens = answer.record["tokens"]
    assert tokens["drafted"] > 2 * tokens["completion"]
    assert tokens["accepted"] < 0.05 * tokens["drafted"]
    assert answer.causes[:1] == ["draft-rejected"], judged(answer)


def test_drafts_out_of_the_text_that_cost_next_to_nothing(
    tmp_path: Path, ram_bytes_per_s: float
) -> None:
    text = "Repeat: red green blue red green blue red green blue"
    options = ["--spec-type", "ngram-simple"]
    with setup(tmp_path, ram_bytes_per_s, threads=1, more=options) as (_, proxy):
        answer = proxy.ask(chat(text, tokens=200))

    tokens = answer.record["tokens"]
    assert 0 < tokens["accepted"] <= tokens["drafted"]
    assert answer.record["verdict"] == "normal", judged(answer)


def test_a_long_context_is_explained_and_normal(tmp_path: Path, ram_bytes_per_s: float) -> None:
    lines = " ".join(f"Line {i}: the sea was calm." for i in range(270))
    with setup(tmp_path, ram_bytes_per_s) as (_, proxy):
        answer = proxy.ask(chat(lines, tokens=300, stream=True))

    assert answer.record["verdict"] == "normal", judged(answer)
    informing = [f["cause"] for f in answer.record["findings"] if f.get("informational")]
    assert informing == ["long-context"]


def uncached_copy(model: Path, directory: Path) -> Path:
    """Copy a model to a file of its own that nobody else keeps in the page cache."""
    copy = directory / "own.gguf"
    shutil.copyfile(model, copy)
    return uncached(copy)


def uncached(path: Path) -> Path:
    """Take a file out of the page cache, so that its pages belong to who reads it next."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def anonymous_bytes(pid: int) -> int:
    """Return the memory of a process that no file stands behind."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def until_processing(engine: RunningEngine) -> None:
    """Wait until the engine works on a request."""
    for _ in range(500):
        if any(slot["is_processing"] for slot in httpx.get(f"{engine.url}/slots").json()):
            return
        threading.Event().wait(0.01)
    raise AssertionError("the request did not come")


def until_idle(engine: RunningEngine) -> None:
    """Wait until the engine works on nothing."""
    for _ in range(6000):
        if not any(slot["is_processing"] for slot in httpx.get(f"{engine.url}/slots").json()):
            return
        threading.Event().wait(0.01)
    raise AssertionError("the engine does not come to an end")


def until_known_asleep(proxy: RunningProxy) -> None:
    """Wait until the proxy has noticed that the model was put away."""
    for _ in range(500):
        if proxy.get("/slowtok/status")["engines"][0].get("slept"):
            return
        threading.Event().wait(0.01)
    raise AssertionError("the proxy did not notice")
