from dataclasses import fields

import pytest

from slowtok.config.efficiency import constants, parse
from slowtok.detectors.expectation.serving import SERVING_ENGINES


def test_constants_are_physical() -> None:
    known = constants()
    assert 0 < known.kv_ratio <= 1
    assert 1 <= known.wide_ratio < 1.3
    for kind, decode in known.decode.items():
        assert 0.3 < decode.efficiency_ratio < 0.93, kind
        assert 0.5 <= decode.low_ratio < 0.8, kind
        assert 1.2 < decode.high_ratio < 1.5, kind
    for kind, prefill in known.prefill.items():
        assert 0.1 < prefill.efficiency_ratio < 1, kind
        assert prefill.low_ratio < 1 < prefill.high_ratio, kind
        assert 0 < prefill.moe_ratio <= 1, kind


def test_a_kind_that_was_not_measured_has_a_wider_band_than_any_that_was() -> None:
    known = constants()
    for generic in known.generic.values():
        assert generic.low_ratio < min(decode.low_ratio for decode in known.decode.values())
        assert generic.high_ratio >= max(decode.high_ratio for decode in known.decode.values())


def test_engines_that_serve_batches_have_constants_for_each_memory() -> None:
    known = constants().serving
    assert set(known.memory) == {"hbm", "gddr", "unified", "instinct"}
    assert set(known.engine) == set(SERVING_ENGINES)
    for name, memory in known.memory.items():
        assert 0.5 < memory.efficiency_ratio <= 0.92, name
        assert 0.3 < memory.low_ratio < 0.8, name
        assert 1.2 < memory.high_ratio < 3.0, name
        assert memory.several_low_ratio < 0.8 < memory.several_high_ratio, name


def test_times_are_in_seconds() -> None:
    known = constants()
    times = [*known.layer_s.values(), known.moe_layer_s, known.old_build_layer_s]
    times += [own.layer_s for own in known.llamafile.values()]
    times += [known.serving.old_layer_s, known.serving.moe_tensor_layer_s]
    times += [memory.layer_s for memory in known.serving.memory.values()]
    times += [memory.tensor_layer_s for memory in known.serving.memory.values()]
    assert all(10e-6 < time_s < 500e-6 for time_s in times)


def test_a_table_without_a_constant_is_refused() -> None:
    with pytest.raises(KeyError, match="kv_ratio"):
        parse({"shared": {}, "llamafile": {}})


def test_nothing_of_the_table_is_forgotten() -> None:
    assert {f.name for f in fields(constants())} == {
        "kv_ratio", "wide_ratio", "layer_s", "moe_layer_s", "old_build_layer_s",
        "llamafile", "decode", "generic", "serving", "prefill",
    }  # fmt: skip
