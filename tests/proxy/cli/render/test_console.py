"""Records for human eyes."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from fakes.cases import (
    FIRING,
    case,
    healthy,
    with_device,
    with_gpu,
    with_phases,
    with_timeline,
    with_tokens,
)
from fakes.records import full_record
from slowtok.detectors.case.case import Case
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.cli.render.console import is_telling, plain, request_line
from slowtok.proxy.cli.render.explanation import explanation, gpu_line
from slowtok.proxy.cli.render.units import seconds
from slowtok.proxy.outputs.record import make_record


def record(before: Case) -> dict[str, Any]:
    return make_record(before, diagnose(before))


def line(found: dict[str, Any]) -> str:
    return request_line(found).plain


def text(found: dict[str, Any]) -> str:
    console = Console(width=300, color_system=None)
    with console.capture() as captured:
        console.print(explanation(found))
    return captured.get()


def test_line_of_a_normal_request() -> None:
    said = line(record(healthy()))

    assert " normal        smollm2  prefill 240 (170 cached) 100 ms" in said
    assert "  decode 450 at 149.2/s (expect 76-210)" in said
    assert said.endswith("  0199f3c2-0000-7000-8000-000000000001")


def test_line_of_a_slow_request_names_the_first_cause() -> None:
    said = line(record(FIRING["queued"]()))

    assert " slow queue    smollm2  queue 2.5 s" in said
    assert "  queued 0.95 lost 2.5 s  " in said


def test_line_of_what_nobody_can_explain() -> None:
    assert "  cause not visible  " in line(record(case(ms_per_token=40)))


def test_line_of_an_unknown_says_why() -> None:
    failed = with_timeline(healthy(), status=503, ended="http-error")
    said = line(record(with_phases(failed, decode_tps=None)))

    assert " unknown " in said
    assert "  503 http-error  " in said
    assert "  (the engine answered with status 503)  " in said


def test_line_does_not_cry_for_what_is_only_for_information() -> None:
    assert "long-context" not in line(record(FIRING["long-context"]()))


def test_line_of_what_only_passed() -> None:
    passed = with_timeline(healthy(), model=None, status=502, ended="upstream-refused")
    said = line(make_record(with_phases(with_tokens(passed, prompt=None), decode_tps=None), None))

    assert " -             /v1/chat/completions  502 upstream-refused  3.1 s  " in said


@pytest.mark.parametrize(
    ("found", "telling"),
    [
        ({"verdict": "normal", "status": 200}, True),
        ({"status": 200}, False),
        ({"status": 404}, False),
        ({"status": 502}, True),
        ({}, False),
    ],
)
def test_what_merely_passed_is_told_only_when_it_failed(
    found: dict[str, Any], telling: bool
) -> None:
    assert is_telling(found) is telling


def test_explanation_of_a_slow_request() -> None:
    said = text(record(FIRING["queued"]()))

    assert said.startswith("SLOW, QUEUE\nsmollm2 on llama-server at http://127.0.0.1:8080\n")
    for part in (
        "queue     2.5 s",
        "prefill   100 ms  240 tokens, 170 cached at 700.0/s",
        "decode    3.0 s   450 tokens at 149.2/s (expect 76-210)",
        "first token after 2.6 s",
        "Expected: roofline",
        "queued  confidence 0.95, lost 2.5 s",
        "wait in the queue = 2.5 s (limit 0.2)",
        "Remedy: Start llama-server with --parallel 4",
        "Lost per token (ms): queued 5.56, unexplained 0.00",
        "Ruled out: all that needs a GPU (10 causes; no GPU is seen here), partial-offload, ",
    ):
        assert part in said, part


def test_explanation_of_what_nobody_can_explain_is_no_guess() -> None:
    told = record(case(ms_per_token=40))

    guess = "No known cause fits. slowtok does not guess: the cause may be in what was not visible"
    unseen = [{"fact": "host samples", "how_to_enable": "by hand"}]
    assert guess in text({**told, "not_visible": unseen})
    seen = text({**told, "not_visible": []})
    assert guess not in seen
    assert "No known cause fits, although slowtok could see everything" in seen


def test_explanation_says_what_could_not_be_seen_and_how_to_see_it() -> None:
    said = text(record(replace(healthy(), host=())))

    assert "Not visible: host samples during decode (the sampling process wrote no" in said


def test_explanation_says_why_nothing_of_the_machine_was_read() -> None:
    why = "the sampling process does not run (ended with code 1: NameError: name 'ALL')"
    unread = replace(case(ms_per_token=40), host=())
    said = text(record(with_device(unread, sampling_failure=why)))

    assert f"Readings of the machine were missing: {why}." in said
    assert f"Not visible: host samples during decode ({why})" in said
    assert "thermal-throttle" not in said
    assert "Readings of the machine" not in text(record(case(ms_per_token=40)))


def test_explanation_names_the_causes_of_a_gpu_where_there_is_one() -> None:
    said = text(record(with_gpu(FIRING["queued"]())))

    assert "all that needs a GPU" not in said


def test_what_is_not_known_is_not_zero() -> None:
    said = text(record(with_tokens(healthy(), prompt=None, cached=None)))

    assert "? tokens" in said
    assert "cached" not in said.partition("Ruled out")[0]


def test_explanation_has_every_part() -> None:
    said = text(full_record())

    assert "for your information" in said
    assert "a reason" in said


def test_explanation_shows_each_gpu() -> None:
    said = text(full_record())

    for part in (
        "GPU 0 NVIDIA GeForce RTX 3090: 0 % busy, 70 % of its bandwidth, 20 of 350 W, 1900 MHz; ",
        "; 60 C (20 C below its limit); clocks held down by sw-power-cap 100 % of the time; ",
        "; 1 J per token; ",
        "; memory (GiB): server 18.0, game 3.0, hidden 0.5, free 2.0 of 24.0",
        "\nGPU 1: ",
    ):
        assert part in said, part


def test_gpu_that_told_nothing_says_so() -> None:
    assert gpu_line({"index": 3}) == "GPU 3: its driver told nothing"
    assert gpu_line({"index": 0, "reasons": {"gpu-idle": 1.0}}) == "GPU 0: its driver told nothing"


@pytest.mark.parametrize("show", [line, text])
def test_nothing_foreign_steers_the_terminal(show: Callable[[dict[str, Any]], str]) -> None:
    evil = "\x1b]0;owned\x07\r\n[bold red]x[/]"
    odd = with_timeline(healthy(), model=evil, path=evil)
    said = show(make_record(odd, diagnose(odd)))

    assert "\x1b" not in said
    assert "\x07" not in said
    assert "]x[/]" in said, "no markup of ours"


@pytest.mark.parametrize(
    ("milliseconds", "said"), [(0.4, "0 ms"), (999.4, "999 ms"), (1000, "1.0 s"), (84210, "84.2 s")]
)
def test_seconds(milliseconds: float, said: str) -> None:
    assert seconds(milliseconds) == said


def test_plain_keeps_what_can_be_read() -> None:
    assert plain("Qwen\u00e9 \u4e2d\t\x00") == "Qwen\u00e9 \u4e2d??"


@pytest.mark.parametrize("width", [40, 80, 100, 120, 160])
def test_line_fits_into_a_terminal(width: int) -> None:
    found = record(FIRING["queued"]()) | {"model": "a-rather-long-name/of-a-model-Q4_K_M.gguf"}
    shown = request_line(found, width)

    assert shown.cell_len <= width
    assert shown.plain.endswith("  00000001")
    if width >= 80:
        assert "slow queue" in shown.plain
        assert "queue 2.5 s  " in shown.plain


CAUSES = ("queued", "prompt-cache-miss", "host-contention", "slow-reader", "threads-misconfigured")


@pytest.mark.parametrize("width", [60, 70, 80, 100, 120])
@pytest.mark.parametrize("name", CAUSES)
def test_a_slow_line_keeps_its_cause_its_loss_and_the_end_of_its_id(name: str, width: int) -> None:
    found = record(FIRING[name]()) | {"model": "a-rather-long-name/of-a-model-Q4_K_M.gguf"}
    shown = request_line(found, width)

    assert shown.cell_len == width, "the id stands at the edge"
    assert shown.plain.endswith("  00000001")
    assert re.search(rf"  {name}( 0\.\d\d)? lost [0-9.]+ m?s ", shown.plain)


@pytest.mark.parametrize(
    ("width", "said"),
    [(80, "21.5 of 76-210/s"), (120, "decode 450 at 21.5/s (expect 76-210)")],
)
def test_a_slow_decode_keeps_rate_and_band(width: int, said: str) -> None:
    assert said in request_line(record(FIRING["host-contention"]()), width).plain


def test_a_rate_never_stands_alone() -> None:
    shown = [request_line(record(healthy()), width).plain for width in range(60, 200)]

    assert all("decode 450 at 149.2/s" in line for line in shown)


def test_id_is_shortened_before_prefill_and_band_go() -> None:
    shown = request_line(record(healthy()), 120).plain

    assert "prefill 240 (170 cached) 100 ms  decode 450 at 149.2/s (expect 76-210)" in shown
    assert shown.endswith("  00000001")


def test_names_have_a_column() -> None:
    short, long = (record(healthy()) | {"model": name} for name in ("m", "m" * 40))
    first, second = (request_line(found, 120).plain for found in (short, long))

    assert first.index("prefill") == second.index("prefill")


def test_a_symptom_does_not_cost_twice() -> None:
    found = record(FIRING["queued"]())
    found["findings"][0] |= {"lost_ms": 0}
    said = text(found)

    assert "confidence 0.95, its loss is counted under its root cause" in said
    assert "lost 0 ms" not in said
