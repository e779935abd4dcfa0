"""What a model needs, held against what engines print."""

import pytest

from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.detectors.expectation.footprint import (
    GIB,
    bits_that_fit,
    context_that_fits,
    embedding_bytes,
    footprint,
    kv_bytes,
    macos_gpu_bytes,
    reserved_tokens,
    saved_by_q8_kv_bytes,
    type_of,
)

LLAMA_8B = ModelFacts(file_bytes=4_920_000_000, kv_bytes_per_token=131_072.0, layers=32)
GEMMA_27B = ModelFacts(
    file_bytes=16_500_000_000,
    kv_bytes_per_token=81_920.0,
    kv_window_tokens=1024,
    kv_window_bytes_per_token=425_984.0,
    layers=62,
)


def server(context: int | None = 4096, slots: int | None = 1, kv: str | None = None) -> ServerFacts:
    return ServerFacts(context_tokens=context, slots=slots, kv_type_k=kv, kv_type_v=kv)


@pytest.mark.parametrize(
    ("model", "facts", "tokens", "expected_mib"),
    [
        (LLAMA_8B, server(), 4096, 512),  # llama.cpp prints 512.00 MiB
        (LLAMA_8B, server(kv="q8_0"), 4096, 271.9),
        (LLAMA_8B, server(kv="unheard-of"), 4096, None),
        (GEMMA_27B, server(), 4096, 736),  # windowed layers stop growing
        (ModelFacts(file_bytes=1), server(), 4096, None),
    ],
)
def test_kv_cache(
    model: ModelFacts, facts: ServerFacts, tokens: int, expected_mib: float | None
) -> None:
    found = kv_bytes(model, facts, tokens)
    assert found == (
        None if expected_mib is None else pytest.approx(expected_mib * 2**20, rel=0.01)
    )


@pytest.mark.parametrize(
    ("facts", "tokens"),
    [
        (server(8192, 4), 32768),
        (server(8192, None), 8192),
        (server(None, 4), None),
        (ServerFacts(context_tokens=8192, slots=256, kv_cache_tokens=91_000), 91_000),
    ],
)
def test_reserved_tokens(facts: ServerFacts, tokens: int | None) -> None:
    assert reserved_tokens(facts) == tokens


@pytest.mark.parametrize(
    ("context", "room_gib", "fits"),
    [(4096, 24, True), (4096, 6.5, None), (4096, 5, False), (131_072, 16, False)],
)
def test_fits(context: int, room_gib: float, fits: bool | None) -> None:
    need = footprint(LLAMA_8B, server(context))
    assert need is not None
    assert need.fits(room_gib * GIB) is fits


def test_without_the_size_of_the_weights_nothing_is_said() -> None:
    assert footprint(ModelFacts(), server()) is None


def test_an_unknown_kv_cache_never_fits_for_sure() -> None:
    need = footprint(ModelFacts(file_bytes=GIB), server())
    assert need is not None
    assert need.fits(100 * GIB) is None
    assert need.fits(0.5 * GIB) is False


def test_context_that_fits() -> None:
    tokens = context_that_fits(LLAMA_8B, server(), 8 * GIB)
    assert tokens is not None
    need = footprint(LLAMA_8B, server(), context_tokens=tokens)
    assert need is not None
    assert need.fits(8 * GIB)
    assert context_that_fits(LLAMA_8B, server(), 4 * GIB) == 0
    assert context_that_fits(ModelFacts(), server(), 8 * GIB) is None


LLAMA_8B_READ = ModelFacts(
    file_bytes=4_920_000_000, read_bytes=4_620_000_000, kv_bytes_per_token=131_072.0, layers=32
)


@pytest.mark.parametrize(
    ("model", "expected_bytes"),
    [
        (LLAMA_8B_READ, 300_000_000),
        (LLAMA_8B, 0),  # what is read is not known
        (GEMMA_27B, 0),
        (ModelFacts(file_bytes=26_440_000_000, read_bytes=7_220_000_000, experts=8), 0),
        (ModelFacts(file_bytes=18_000_000_000, read_bytes=4_620_000_000), 0),  # too much for one
    ],
)
def test_the_embedding_table_stays_in_ram(model: ModelFacts, expected_bytes: int) -> None:
    assert embedding_bytes(model) == expected_bytes


def test_the_embedding_table_is_on_the_gpu_with_vllm() -> None:
    by_llama = footprint(LLAMA_8B_READ, server())
    by_vllm = footprint(LLAMA_8B_READ, ServerFacts(kind="vllm", context_tokens=4096))
    assert by_llama is not None
    assert by_vllm is not None
    assert by_vllm.least_bytes - by_llama.least_bytes == 300_000_000


def test_context_that_fits_beside_what_was_measured() -> None:
    tokens = context_that_fits(LLAMA_8B, server(), 8 * GIB, beside_kv_bytes=5 * GIB)
    assert tokens == 3 * GIB // 131_072


@pytest.mark.parametrize(
    ("facts", "saved_mib"),
    [(server(), 240), (server(kv="q8_0"), 0), (server(kv="q4_0"), 0), (server(None), 0)],
)
def test_saved_by_an_8_bit_cache(facts: ServerFacts, saved_mib: float) -> None:
    assert saved_by_q8_kv_bytes(LLAMA_8B, facts) / 2**20 == pytest.approx(saved_mib, abs=1)


@pytest.mark.parametrize(
    ("bits", "name"),
    [(16.0, "Q8_0"), (4.9, "Q4_K_M"), (3.4, "IQ3_XXS"), (2.6, "IQ2_XS"), (2.0, None)],
)
def test_type_of(bits: float, name: str | None) -> None:
    assert type_of(bits) == name


def test_bits_that_fit() -> None:
    assert bits_that_fit(ModelFacts(parameters=8_000_000_000), 4e9) == 4.0
    assert bits_that_fit(ModelFacts(), 4e9) is None


@pytest.mark.parametrize(
    ("ram_gib", "mib"), [(16, 10922.67), (24, 16384), (32, 21845.34), (36, 27648), (64, 49152)]
)
def test_macos_gives_the_gpu_what_llama_cpp_prints(ram_gib: int, mib: float) -> None:
    assert macos_gpu_bytes(ram_gib * GIB) / 2**20 == pytest.approx(mib, abs=0.01)
