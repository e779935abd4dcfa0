"""What the status says of fit, from what is known of engines and GPUs."""

from dataclasses import replace
from typing import Any

import pytest

from fakes.doctor import GIB, MODEL, RESTING, SERVER, gpu_samples, seen
from slowtok.proxy.inspection.seen import Seen
from slowtok.proxy.web.status import fit_status


def of(what: Seen) -> list[dict[str, Any]]:
    return fit_status(what, what.engines[0])


def test_a_model_that_fits() -> None:
    [fit] = of(seen())

    assert (fit["model"], fit["state"]) == ("llama-8b", "ok")
    assert "advice" not in fit
    assert (fit["weights_bytes"], fit["kv_bytes"]) == (5 * GIB, GIB)
    assert (fit["context_tokens"], fit["usable_bytes"]) == (8192, 23.5 * GIB)
    room = fit["usable_bytes"] - fit["weights_bytes"] - 2.1 * GIB
    assert fit["most_context_tokens"] == pytest.approx(room / 131_072, rel=0.001)


def test_a_model_that_does_not() -> None:
    held = replace(MODEL, file_bytes=40 * GIB)
    [fit] = of(seen(model=held, gpu=gpu_samples(RESTING)))

    assert fit["state"] == "warn"
    assert "cannot fit at any context" in fit["advice"]
    assert fit["most_context_tokens"] == 0
    assert fit["cpu_ratio"] > 0.5


@pytest.mark.parametrize("server", [replace(SERVER, gpu_indices=()), replace(SERVER, gpu_layers=0)])
def test_in_ram_no_context_of_a_card_is_promised(server: Any) -> None:
    [fit] = of(seen(server=server))

    assert "most_context_tokens" not in fit


def test_an_engine_elsewhere_is_not_judged() -> None:
    [fit] = of(seen(server=replace(SERVER, local=False)))

    assert fit == {"model": "llama-8b", "state": "unknown", "weights_bytes": 5 * GIB}


def test_each_of_several_models_has_its_own() -> None:
    what = seen()
    both = (
        what.engines[0].serving[0],
        replace(what.engines[0].serving[0], model=replace(MODEL, name="b")),
    )
    engine = replace(what.engines[0], serving=both)

    assert [fit["model"] for fit in fit_status(what, engine)] == ["llama-8b", "b"]


def test_nothing_in_memory() -> None:
    what = seen()

    assert fit_status(what, replace(what.engines[0], serving=())) == []
