"""One frame of `slowtok top`: a stuck request, a slow one and a healthy one look different."""

import io
from typing import Any

import pytest
from rich.console import Console

from fakes.logs import record
from slowtok.proxy.cli.render.top import band_of, frame, state_of

GIB = 2**30
BAND = (40.0, 60.0)
DECODE = {"phase": "decode", "model": "m", "since_s": 12.0, "tokens": 90}
GPU = {
    "index": 0,
    "name": "NVIDIA GeForce RTX 3090",
    "power_limit_w": 350.0,
    "max_sm_clock_mhz": 1900,
    "slowdown_temperature_c": 93,
    "now": {
        "busy_ratio": 0.97, "power_w": 348.2, "sm_clock_mhz": 1410, "temperature_c": 71,
        "reasons": ["gpu-idle", "sw-power-cap"],
    },
    "vram": {"total_bytes": 24 * GIB, "free_bytes": 2 * GIB},
}  # fmt: skip


def status(**more: Any) -> dict[str, Any]:
    engine = {"kind": "llama-server", "answers": True}
    return {
        "version": "9.9", "listen": "here", "counts": {"requests": 3}, "engines": [engine], **more
    }  # fmt: skip


def shown(said: dict[str, Any], *records: dict[str, Any], width: int = 80) -> str:
    screen = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    with screen.capture() as captured:
        screen.print(frame(said, records, width=width))
    return captured.get()


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ({"recent_tps": 50.0, "silent_s": 0.1}, "in band"),
        ({"recent_tps": 70.0, "silent_s": 0.1}, "in band"),
        ({"recent_tps": 9.0, "silent_s": 0.1}, "below"),
        ({"recent_tps": 0.0, "decode_tps": 50.0, "silent_s": 8.0}, "nothing for 8 s"),
        ({"silent_s": 0.1}, ""),
    ],
)
def test_states(entry: dict[str, Any], word: str) -> None:
    assert state_of(DECODE | entry, BAND)[0] == word


def test_without_a_band_nothing_is_below_it() -> None:
    assert state_of(DECODE | {"recent_tps": 1.0, "silent_s": 0.1}, None) == ("", "")
    assert state_of(DECODE | {"silent_s": 8.0}, None)[0] == "nothing for 8 s"


def test_the_band_is_that_of_the_newest_request_of_the_model() -> None:
    def judged(model: str, low: float) -> dict[str, Any]:
        return {"model": model, "expected": {"decode_low_tps": low, "decode_high_tps": 99.0}}

    records = [judged("other", 1.0), {"model": "m"}, judged("m", 2.0), judged("m", 3.0)]

    assert band_of(DECODE, records) == (2.0, 99.0)
    assert band_of(DECODE, []) is None


def test_a_gpu_in_one_line() -> None:
    [lane] = [row for row in shown(status(gpus=[GPU]), width=160).splitlines() if "GPU 0" in row]

    assert "[##########]  97 %  348/350 W  1410/1900 MHz  71 C  VRAM 22.0/24 GiB" in lane
    assert "sw-power-cap" in lane
    assert "gpu-idle" not in lane


def test_what_a_gpu_does_not_tell_is_not_zero() -> None:
    said = shown(status(gpus=[{"index": 1}]))

    assert "GPU 1 [    ?     ]" in said
    assert "0 %" not in said


@pytest.mark.parametrize("width", [40, 80, 120])
def test_it_fits(width: int) -> None:
    model = "a/very/long/" + "name" * 30
    running = [
        DECODE | {"recent_tps": 9.0, "silent_s": 0.1, "model": model},
        {"phase": "waiting", "since_s": 2.0},
    ]
    host = {"cpu_cores": 8, "cpu_busy_cores": 3.0, "server_cpu_cores": 2.0}
    said = shown(
        status(running=running, gpus=[GPU], host=host),
        record(model=model),
        record("queued", model=model),
        width=width,
    )

    assert max(len(row) for row in said.splitlines()) <= width
    assert "waiting" in said
    assert "queued" in said
    assert "below" in said
    assert "now/s" in said


@pytest.mark.parametrize(
    ("prefill", "word"),
    [
        ({"tokens": 4096, "about_tokens": 12000, "eta_s": 15.8}, "~34%, ~16 s to go"),
        ({"tokens": 4096, "about_tokens": 12000}, "~34%"),
        ({"about_tokens": 900, "eta_s": 9.5}, "~10 s to go"),
        ({"tokens": 4096}, ""),
    ],
)
def test_how_far_a_prefill_is(prefill: dict[str, Any], word: str) -> None:
    entry = {"model": "m", "phase": "prefill", "since_s": 4.0, "prefill": prefill}

    assert state_of(entry, (20.0, 30.0)) == (word, "")
    assert word in shown(status(running=[entry]))


def test_nothing_runs() -> None:
    assert "nothing runs now" in shown(status())
    assert "llama-server does not answer" in shown(
        status(engines=[{"kind": "llama-server", "answers": False}])
    )


def test_a_foreign_name_cannot_steer_the_terminal() -> None:
    said = shown(status(running=[DECODE | {"model": "\x1b[2Jevil"}]))

    assert "\x1b" not in said
    assert "?[2Jevil" in said
