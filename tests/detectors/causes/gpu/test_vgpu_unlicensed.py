from dataclasses import replace

import pytest

from fakes.cases import cpu_fallback, with_phases, with_server
from fakes.cause_tests import fires, lacks, quiet
from fakes.clock_cases import slower_from
from fakes.clock_cases import vgpu_unlicensed as firing
from fakes.gpu_cases import gpu_case, with_card, with_readings
from slowtok.detectors.case.case import Case, Envelope
from slowtok.detectors.causes.gpu import vgpu_unlicensed


def while_answering() -> Case:
    """ollama/ollama#1863: from 15 to 0.1 tokens/s while answering; here from token 250 on."""
    return slower_from(firing(), token=250, times=55.0)


def virtual(ms_per_token: float, *, licensed: bool | None) -> Case:
    card = with_card(gpu_case(ms_per_token=ms_per_token), virtual=True)
    return with_readings(card, vgpu_licensed=licensed)


QUIET = [
    pytest.param(
        with_readings(gpu_case(ms_per_token=80), vgpu_licensed=False), id="passed through"
    ),
    pytest.param(with_server(firing(), local=False), id="the engine is on another machine"),
    pytest.param(virtual(80, licensed=True), id="slow with its licence: neighbours"),
    pytest.param(virtual(7.8, licensed=False), id="the first twenty minutes"),
    pytest.param(virtual(13.0, licensed=False), id="slower by less than two times"),
    pytest.param(cpu_fallback(), id="the engine runs on the CPU"),
]
FIRING = [
    pytest.param(firing(), 20.96, "virtual GPU without a licence", id="0 % busy (ollama#8023)"),
    pytest.param(firing(), 20.96, "nvidia-gridd", id="what to do"),
    pytest.param(while_answering(), 20.96, "tokens/s from token 2", id="while answering"),
    pytest.param(
        with_readings(firing(), busy_ratio=None), 20.96, "9.9 times slower", id="load not told"
    ),
]
MISSING = [
    pytest.param(virtual(80, licensed=None), "licence of the vGPU", id="licence not told"),
    pytest.param(with_phases(firing(), decode_s=None), "decode time", id="no decode time"),
    pytest.param(
        replace(firing(), envelope=Envelope(because=("the card is not known",))),
        "decode rate expected of this GPU",
        id="no expectation",
    ),
]


test_quiet = quiet(vgpu_unlicensed, QUIET)
test_fires = fires(vgpu_unlicensed, "lost_s said", FIRING)
test_names_the_missing_fact = lacks(vgpu_unlicensed, MISSING)
