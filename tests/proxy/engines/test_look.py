"""A model file that cannot be read on this machine: what the engine says of it stands in."""

from pathlib import Path

from slowtok.detectors.case.engine import ServerFacts
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts
from slowtok.detectors.expectation.envelope import expect
from slowtok.proxy.engines.engine import Engine
from slowtok.proxy.engines.look import _read_model
from slowtok.proxy.engines.probing.facts import Probe

PROBE = Probe(
    models=("Qwen3-8B-Q4_K_M",),
    model_path="/models/q.gguf",
    quantisation="Q4_K_M",
    parameters=8_190_735_360,
    weight_bytes=5_027_000_000,
)
CARD = DeviceFacts(
    gpus=(GpuFacts(index=0, name="NVIDIA GeForce RTX 3060", bandwidth_bytes_per_s=360e9),)
)


async def test_an_unreadable_file_leads_to_a_wider_band(tmp_path: Path) -> None:
    engine = Engine(name="e", url="http://127.0.0.1:1", given=True, probe=PROBE, local=True)
    (tmp_path / "m.gguf").write_bytes(b"not a model")
    facts = await _read_model(engine, "Qwen3-8B-Q4_K_M", str(tmp_path / "m.gguf"), tmp_path)
    assert (facts.parameters, facts.file_bytes) == (PROBE.parameters, PROBE.weight_bytes)
    assert facts.path is None  # so that the next look asks for it again
    envelope = expect(facts, CARD, ServerFacts(kind="llama-server"), 500)
    assert envelope.decode is not None
    assert envelope.decode.low < 62 < envelope.decode.high
    assert any("file was not read" in note for note in envelope.because)
