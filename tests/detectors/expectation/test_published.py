from dataclasses import replace

import pytest

from fakes.hardware import ROW
from slowtok.detectors.case.case import Envelope
from slowtok.detectors.case.engine import ServerFacts
from slowtok.detectors.expectation.assumed_model import Assumption, bits_of, widen
from slowtok.detectors.expectation.envelope import expect
from slowtok.detectors.expectation.published import facts_of
from slowtok.detectors.expectation.reads import reads_of


def without(*columns: str) -> dict[str, object]:
    return {column: value for column, value in ROW.items() if column not in columns}


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"weights_gib": "big"}, "weights_gib"),
        ({"params_b": "nan"}, "params_b"),
        ({"context_depth": -1}, "context_depth"),
        ({"weights_gib": "", "quant": "magic"}, "size"),
        ({"weights_gib": None, "params_b": None, "model": None}, "size"),
    ],
)
def test_a_row_that_says_nothing_usable_is_refused(bad: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        facts_of(ROW | bad)


def test_a_whole_row_needs_no_assumption() -> None:
    found = facts_of(ROW)
    assert found.assumed == ()
    assert found.context_tokens == 4096
    assert found.model.layers == 32
    assert found.model.kv_bytes_per_token == 131072
    assert found.model.read_bytes == pytest.approx(4.60e9, rel=0.01)  # no embedding table
    assert found.server.version == "4426e298 (b2824)"
    assert widen(Envelope(because=("x",)), found.assumed).because == ("x",)


def test_numbers_may_be_numbers() -> None:
    typed = ROW | {"params_b": 8.03, "n_layers": 32, "context_depth": 4096, "weights_gib": 4.58}
    assert facts_of(typed) == facts_of(ROW)


@pytest.mark.parametrize("gap", [("mem_bw_gbs",), ("n_layers", "n_kv_heads", "head_dim")])
def test_what_tables_know_may_be_missing(gap: tuple[str, ...]) -> None:
    found = facts_of(without(*gap))
    assert found.assumed == ()
    assert found.model == facts_of(ROW).model
    assert found.device.gpus
    assert found.device.gpus[0].bandwidth_bytes_per_s == pytest.approx(1008.1e9)


def test_a_laptop_without_a_bandwidth_gets_none_of_a_card() -> None:
    found = facts_of(without("mem_bw_gbs") | {"gpu": "NVIDIA GeForce RTX 6090 Laptop GPU"})
    envelope = expect(found.model, found.device, found.server, 0)
    assert envelope.ceiling_tps is None
    assert "bandwidth" in envelope.because[0]


@pytest.mark.parametrize(
    "gap",
    [
        {"model": "someone's", "n_layers": None},
        {"weights_gib": None},
        {"context_depth": None},
        {"model": "someone's", "params_b": "11.1"},
    ],
)
def test_an_assumption_is_said_and_widens_the_band(gap: dict[str, object]) -> None:
    found = facts_of(ROW | gap)
    envelope = expect(found.model, found.device, found.server, found.context_tokens)
    wide = widen(envelope, found.assumed)
    assert found.assumed
    assert envelope.decode is not None
    assert wide.decode is not None
    assert wide.decode.low < envelope.decode.low
    if "context_depth" not in gap:  # at an empty context it is highest anyway
        assert wide.decode.high > envelope.decode.high
        assert (wide.ceiling_tps or 0) > (envelope.ceiling_tps or 0)
    assert wide.because[-len(found.assumed) :] == tuple(each.note for each in found.assumed)


def test_an_assumption_beside_no_band_is_only_said() -> None:
    found = replace(facts_of(ROW), assumed=(Assumption(note="y"),))
    assert widen(Envelope(because=("x",)), found.assumed) == Envelope(because=("x", "y"))


def test_a_mixture_that_is_not_in_the_table_reads_its_active_part() -> None:
    row = ROW | {
        "model": "new-moe",
        "params_b": "55",
        "active_params_b": "5.5",
        "weights_gib": "30",
    }
    facts = facts_of(row | {"n_layers": "", "n_kv_heads": "", "head_dim": ""}).model
    assert facts.read_bytes == pytest.approx(3 * 2**30, rel=0.01)
    assert (facts.experts or 0) > 1


def test_gpt_oss_reads_more_than_its_share_of_parameters() -> None:
    """Its experts are stored in 4 bits and the rest in 8 or 16."""
    row = ROW | {"model": "gpt-oss 120B MXFP4", "params_b": "116.829", "weights_gib": "59.02"}
    row |= {"n_layers": "36", "head_dim": "64", "quant": "MXFP4"}
    assert facts_of(row).model.read_bytes == 3_630_000_000


def test_a_state_of_constant_size_is_read_at_any_depth() -> None:
    row = ROW | {"model": "Qwen3.5-27B", "params_b": "26.9", "n_layers": "64"}
    facts = facts_of(row | {"n_kv_heads": "4", "head_dim": "256"}).model
    assert facts.state_bytes == 301989888 / 2
    reads = [reads_of(facts, ServerFacts(), tokens).kv for tokens in (0, 1000)]
    assert reads == [301989888, 301989888 + 1000 * 65536]  # written as well as read


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        ("llama.cpp CUDA", "llama-server"),
        ("llamafile(llama.cpp) NVIDIA GPU", "llamafile"),
        ("vllm 0.23.0", "vllm"),
        ("exllamav3 1.0.0+cu128.torch2.8.0", "exllamav3"),
        ("mlc-llm", "mlc"),
        ("mlx", "mlx"),
        ("", "llama-server"),
    ],
)
def test_engines(backend: str, kind: str) -> None:
    assert facts_of(ROW | {"backend": backend}).server.kind == kind


@pytest.mark.parametrize("backend", ["llama.cpp CUDA + MTP n=2", "vllm DFlash n=5"])
def test_speculation_by_the_name_of_the_backend_has_no_ceiling(backend: str) -> None:
    found = facts_of(ROW | {"backend": backend})
    assert found.server.speculative
    assert expect(found.model, found.device, found.server, 0).ceiling_tps is None


def test_several_gpus_share_each_layer_or_take_turns() -> None:
    turns = facts_of(ROW | {"n_gpus": "4"})
    together = facts_of(ROW | {"n_gpus": "4", "backend": "vllm 0.23.0"})
    assert len(turns.device.gpus or ()) == 4
    assert (turns.server.split_mode, turns.server.tensor_parallel) == ("layer", None)
    assert (together.server.split_mode, together.server.tensor_parallel) == (None, 4)


@pytest.mark.parametrize(
    "row", [{"ngl_or_offload": "cpu"}, {"backend": "ik_llama.cpp CPU"}, {"gpu": "CPU i9-13900K"}]
)
def test_cpus_are_held_to_their_ram(row: dict[str, object]) -> None:
    found = facts_of(ROW | row | {"mem_bw_gbs": "102.4"})
    assert found.device.gpus == ()
    assert found.device.ram_bandwidth_bytes_per_s == pytest.approx(102.4e9)


def test_bits_of_a_type() -> None:
    for name, bits in (("Q4_K_M", 4.9), ("UD-Q4_K_XL", 4.9), ("bf16", 16), ("IQ2_XXS", 2.6)):
        assert bits_of(name) == bits
    assert bits_of("autoround-int4") == 4.7
    assert bits_of(None) is None
    assert bits_of("magic") is None
