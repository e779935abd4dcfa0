"""The whole look: as one JSON object, as a page, and when a part of it breaks."""

import io
import re
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from fakes.doctor import DEVICE, MODEL, NAME, SERVER, URL, checks, host_samples, seen, states
from slowtok.proxy.cli.render.doctor import page
from slowtok.proxy.inspection import examine as examining
from slowtok.proxy.inspection.check import Check
from slowtok.proxy.inspection.examine import as_json, examine
from slowtok.proxy.inspection.seen import EngineSeen, Seen

NOTHING = Seen(looked_at="ports 8080", host=host_samples())


def printed(what: Seen, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(page(examine(what), is_anything=what.is_anything))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_nothing_at_all_says_what_to_do() -> None:
    assert not NOTHING.is_anything
    assert states(NOTHING) == {"found": "unknown", "gpu": "unknown"}
    assert "llama-server -m model.gguf" in (checks(NOTHING, "found")[0].advice or "")
    assert printed(NOTHING).endswith("no engine answered and no GPU was seen.\n")


def test_a_gpu_without_an_engine_is_something() -> None:
    assert replace(seen(), engines=()).is_anything


def test_slowtok_itself_is_no_engine() -> None:
    [engine] = seen().engines
    what = replace(NOTHING, engines=(replace(engine, is_slowtok=True),))

    assert not what.is_anything
    assert "slowtok itself" in checks(what, "found")[0].said
    assert not checks(what, "model")


def test_an_engine_that_does_not_answer() -> None:
    silent = EngineSeen(name=NAME, url=URL, answers=False, server=SERVER)
    what = replace(NOTHING, engines=(silent,))

    assert not what.is_anything
    assert checks(what, "found")[0].state == "unknown"


def test_an_engine_with_nothing_in_memory_offers() -> None:
    [engine] = seen().engines
    names = tuple(f"m{i}" for i in range(7))
    what = replace(seen(), engines=(replace(engine, serving=(), models=names),))

    assert "the engine offers m0, m1, m2, m3, m4 and 2 more" in checks(what, "model")[0].said


def test_one_examiner_that_breaks_costs_its_own_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_gpus(_: Seen) -> list[Check]:
        raise ValueError("odd")

    rest = [e for e in examining.EXAMINERS if e.__name__ != "check_gpus"]
    monkeypatch.setattr(examining, "EXAMINERS", (check_gpus, *rest))

    assert checks(seen(), "broken")[0].said == "check_gpus failed (ValueError: odd)"
    assert checks(seen(), "fit")


def test_json_is_one_object_without_unknowns() -> None:
    what = seen()
    found = orjson.loads(orjson.dumps(as_json(what, examine(what))))

    assert set(found) == {
        "schema", "version", "inspected", "summary", "engines", "gpus", "machine", "checks",
    }  # fmt: skip
    assert found["inspected"] is True
    assert found["summary"]["warn"] == 0
    assert sum(found["summary"].values()) == len(found["checks"])
    assert found["engines"][0]["models"][0]["file_bytes"] == MODEL.file_bytes
    assert found["gpus"][0]["now"]["temperature_c"] == 38
    assert None not in found["machine"].values()
    assert all({"area", "name", "state", "said"} <= set(check) for check in found["checks"])


@pytest.mark.parametrize("width", [80, 120])
def test_the_page_keeps_to_its_width(width: int) -> None:
    lines = printed(seen(), width).splitlines()

    assert max(map(len, lines)) <= width
    assert "ok    power-limit" in printed(seen(), width)
    assert lines[-1].startswith("Nothing that was seen costs speed. 1 thing could not be told")


def test_the_page_counts_what_costs_speed() -> None:
    said = printed(seen(server=replace(SERVER, kv_on_gpu=False, flash_attention="off")))

    assert "2 things cost speed (WARN)." in said


def test_foreign_names_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in printed(seen(model=replace(MODEL, name="bad\x1b[2Jname")))


def test_what_a_gpu_never_gives_is_one_line() -> None:
    absent = {"ecc_errors": "not supported", "remapped_rows": "not supported", "xid": "no root",
              "vgpu_licensed": "not a vGPU"}  # fmt: skip
    [card] = DEVICE.gpus or ()
    what = seen(device=replace(DEVICE, gpus=(replace(card, absent=absent),)))

    [readings] = checks(what, "readings")
    assert (readings.about, readings.state) == ("GPU 0", "note")
    assert "(not supported); " in readings.said
    assert "vGPU" not in readings.said


NAMED = re.compile(r'(?:name=|_check\(\s*(?:gpu,\s*)?|_hidden\(\s*|return \(?\s*)"([a-z][a-z-]*)"')


def test_every_check_is_documented_and_no_other() -> None:
    root = Path(__file__).resolve().parents[3]
    sources = "".join(f.read_text() for f in (root / "proxy/inspection").glob("*.py"))
    table = (root / "docs/doctor.md").read_text().partition("| area | checks |")[2]
    rows = table.partition("\n\n")[0].splitlines()[2:]
    documented = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|")[2])}

    assert documented == set(NAMED.findall(sources))
