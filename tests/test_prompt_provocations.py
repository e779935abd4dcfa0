"""What is lost of prompts, and to clients that leave, provoked on a real llama-server.

What is asserted is the cause and where its evidence lies, as in `test_provocations`.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.random_model import recurrent, windowed
from fakes.running import DECODE_TOKENS, chat
from test_provocations import judged, setup, until_processing

pytestmark = pytest.mark.engine


def turns(*said: tuple[str, str], **more: Any) -> dict[str, Any]:
    """A conversation, asked for a few tokens as a stream."""
    messages = [{"role": role, "content": content} for role, content in said]
    return {**chat(tokens=8, stream=True), "messages": messages, **more}


def text_of(count: int, of: str) -> str:
    """Text of about eight tokens for each of `count`."""
    return " ".join(f"{of} {i}: be kind to dragon number {i}." for i in range(count))


SHORT = ("system", "Be short and kind to all of them.")
RULES = ("system", text_of(90, "Rule"))
GROWN = (("user", "Name a colour."), ("assistant", "Red."), ("user", "And another one."))


@pytest.mark.long
def test_a_clock_in_the_middle_of_a_history(tmp_path: Path, ram_bytes_per_s: float) -> None:
    with setup(tmp_path, ram_bytes_per_s) as (_, proxy):
        for clock in ("08:00:01", "08:00:02"):
            found = ("user", f"It is {clock}. {text_of(60, 'File')}")
            answer = proxy.ask(turns(RULES, found, *GROWN[1:]))

    assert answer.record.get("phase") == "prefill", judged(answer)
    assert answer.causes[0] == "prompt-cache-miss"
    summary = answer.record["findings"][0]["summary"]
    assert "a date or time changes" in summary
    assert "message 2 (role user)" in summary


def test_more_conversations_than_slots(tmp_path: Path, ram_bytes_per_s: float) -> None:
    with setup(tmp_path, ram_bytes_per_s, more=["--cache-ram", "0"]) as (_, proxy):
        for who in ("Anna", "Bert"):
            proxy.ask(turns(("system", text_of(90, who)), GROWN[0]))
        answer = proxy.ask(turns(("system", text_of(90, "Anna")), *GROWN))

    assert answer.record.get("phase") == "prefill", judged(answer)
    assert answer.causes[0] == "cache-evicted"
    assert "its one slot" in answer.record["findings"][0]["summary"]


@pytest.mark.long
def test_conversations_that_the_engine_keeps_beside_its_slots(
    tmp_path: Path, ram_bytes_per_s: float
) -> None:
    with setup(tmp_path, ram_bytes_per_s) as (_, proxy):
        for who in ("Anna", "Bert"):
            proxy.ask(turns(("system", text_of(90, who)), GROWN[0]))
        answer = proxy.ask(turns(("system", text_of(90, "Anna")), *GROWN))

    assert "cache-evicted" not in answer.causes, judged(answer)
    assert answer.record["tokens"]["cached"] > 700


@pytest.mark.parametrize(
    ("options", "is_lost"), [([], True), (["--cache-reuse", "32"], False)], ids=["plain", "reuse"]
)
def test_a_message_left_out_in_the_middle(
    options: list[str], is_lost: bool, tmp_path: Path, ram_bytes_per_s: float
) -> None:
    """An engine that moves what it knows has all that stands behind it."""
    left_out, last = ("user", text_of(9, "File")), ("user", text_of(90, "Last"))
    with setup(tmp_path, ram_bytes_per_s, more=["--cache-ram", "0", *options]) as (_, proxy):
        proxy.ask(turns(SHORT, left_out, last))
        answer = proxy.ask(turns(SHORT, last))

    tokens = answer.record["tokens"]
    if is_lost:
        assert answer.causes[:1] == ["prompt-cache-miss"], judged(answer)
        assert "--cache-reuse 256" in answer.record["findings"][0]["remedy"]
    else:
        assert tokens["recomputed"] < 64
        assert tokens["cached"] > 0.95 * tokens["prompt"]
        assert "prompt-cache-miss" in answer.record["cleared"], judged(answer)


def test_what_was_put_in_is_computed_and_all_behind_it(
    tmp_path: Path, ram_bytes_per_s: float
) -> None:
    """An engine that moves what it knows looks for the prompt in its cache, in this order."""
    last = ("user", text_of(90, "Last"))
    with setup(tmp_path, ram_bytes_per_s, more=["--cache-reuse", "32"]) as (_, proxy):
        proxy.ask(turns(SHORT, last))
        answer = proxy.ask(turns(SHORT, ("user", "One more word."), last))

    assert answer.causes[:1] == ["prompt-cache-miss"], judged(answer)
    assert answer.record["tokens"]["recomputed"] > 1000
    assert "--cache-reuse" not in answer.record["findings"][0]["remedy"]


def test_a_slot_that_was_saved_and_restored(tmp_path: Path, ram_bytes_per_s: float) -> None:
    options = ["--cache-ram", "0", "--slot-save-path", str(tmp_path)]
    with setup(tmp_path, ram_bytes_per_s, more=options) as (engine, proxy):

        def act(base_url: str, action: str) -> None:
            url = f"{base_url}/slots/0?action={action}"
            httpx.post(url, json={"filename": "slot.bin"}, timeout=60).raise_for_status()

        proxy.ask(turns(RULES, GROWN[0]))
        act(proxy.url, "save")
        answers = []
        for base_url in (engine.url, proxy.url):  # beside the proxy it sees nothing of it
            proxy.ask(turns(("system", text_of(90, "Law")), GROWN[0]))
            act(base_url, "restore")
            answers.append(proxy.ask(turns(RULES, *GROWN)))
        act(engine.url, "erase")
        erased = proxy.ask(turns(RULES, *GROWN))

    for answer in answers:
        tokens = answer.record["tokens"]
        assert tokens["recomputed"] < 64
        assert tokens["cached"] > 0.9 * tokens["prompt"]
        assert not {"prompt-cache-miss", "cache-evicted"} & {*answer.causes}, judged(answer)
    assert erased.record["tokens"]["cached"] == 0
    assert erased.causes[:1] == ["prompt-cache-miss"], judged(erased)


REWRITES = """
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\n' }}
{%- if message['role'] == 'user' and not loop.last %}{{ '(earlier) ' }}{% endif %}
{{- message['content'] + '<|im_end|>\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\n' }}
"""


def test_a_template_that_renders_earlier_turns_anew(tmp_path: Path, ram_bytes_per_s: float) -> None:
    template = tmp_path / "rewrites.jinja"
    template.write_text(REWRITES)
    question = ("user", text_of(90, "File"))
    with setup(tmp_path, ram_bytes_per_s, more=["--chat-template-file", str(template)]) as (
        _,
        proxy,
    ):
        proxy.ask(turns(SHORT, question))
        answer = proxy.ask(turns(SHORT, question, *GROWN[1:]))

    assert answer.record.get("phase") == "prefill", judged(answer)
    assert answer.causes[0] == "template-rewrite"


@pytest.mark.parametrize("make", [windowed, recurrent])
def test_a_state_that_cannot_be_rewound(
    make: Callable[[Path], Path], tmp_path: Path, ram_bytes_per_s: float
) -> None:
    """Only the end of the prompt changes, and all of it is read again."""
    model = make(tmp_path / "random.gguf")
    with setup(tmp_path, ram_bytes_per_s, model=model, context=16_384) as (_, proxy):
        for word in ("One", "Two"):
            answer = proxy.ask(turns(("system", text_of(200, "Rule")), *changed_late(word)))

    assert answer.record["tokens"]["cached"] == 0
    named = {*answer.causes, *answer.record.get("unused", ())}  # a small model loses little time
    assert "cache-not-rewindable" in named, judged(answer)


def test_a_window_whose_whole_cache_is_kept(tmp_path: Path, ram_bytes_per_s: float) -> None:
    model, options = windowed(tmp_path / "random.gguf"), ["--swa-full"]
    with setup(tmp_path, ram_bytes_per_s, model=model, context=16_384, more=options) as (_, proxy):
        for word in ("One", "Two"):
            answer = proxy.ask(turns(("system", text_of(200, "Rule")), *changed_late(word)))

    assert answer.record["tokens"]["cached"] > 1000
    assert "cache-not-rewindable" in answer.record["cleared"], judged(answer)


def changed_late(word: str) -> tuple[tuple[str, str], ...]:
    """Turns that begin with a word, a thousand tokens before their end."""
    return (("user", f"{word}. {text_of(90, 'File')}"), *GROWN[1:])


@pytest.mark.long
def test_a_client_that_leaves_in_a_long_prompt(tmp_path: Path, ram_bytes_per_s: float) -> None:
    """llama-server looks for its client between two batches: this prompt is one."""
    long = turns(("user", text_of(190, "File")))
    with setup(tmp_path, ram_bytes_per_s) as (engine, proxy):
        proxy.ask(chat(tokens=8))  # the proxy knows its engine by now
        url = f"{proxy.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=long, timeout=60) as leaving:
            until_processing(engine)
            leaving.close()
        answer = proxy.ask(chat("Name three colours.", tokens=16, stream=True))

    assert answer.record.get("phase") == "queue", judged(answer)
    assert answer.causes[0] == "abandoned-request"


def test_a_prompt_asked_again_after_its_client_gave_up(
    tmp_path: Path, ram_bytes_per_s: float
) -> None:
    with setup(tmp_path, ram_bytes_per_s) as (_, proxy):
        asked = chat(tokens=DECODE_TOKENS, stream=True)
        url = f"{proxy.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=asked, timeout=60) as leaving:
            next(leaving.iter_lines())
        threading.Event().wait(1.0)
        answer = proxy.ask(asked)

    informing = [f["cause"] for f in answer.record["findings"] if f.get("informational")]
    assert "retried-request" in informing, judged(answer)
