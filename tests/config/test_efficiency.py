from dataclasses import fields

import pytest

from slowtok.config.efficiency import constants, parse


def test_constants_are_physical() -> None:
    known = constants()
    assert 0 < known.kv_ratio <= 1
    assert 1 <= known.wide_ratio < 1.3
    for kind, decode in known.decode.items():
        assert 0.3 < decode.efficiency_ratio < 0.93, kind
        assert 0.5 <= decode.low_ratio < 0.8, kind
    for kind, prefill in known.prefill.items():
        assert 0.1 < prefill.efficiency_ratio < 1, kind
        assert prefill.low_ratio < 1 < prefill.high_ratio, kind
        assert 0 < prefill.moe_ratio <= 1, kind


def test_times_are_in_seconds() -> None:
    known = constants()
    times = [*known.layer_s.values(), known.moe_layer_s, known.old_build_layer_s]
    times += [own.layer_s for own in known.llamafile.values()]
    assert all(10e-6 < time_s < 500e-6 for time_s in times)


def test_a_table_without_a_constant_is_refused() -> None:
    with pytest.raises(KeyError, match="kv_ratio"):
        parse({"shared": {}, "llamafile": {}})


def test_nothing_of_the_table_is_forgotten() -> None:
    assert {f.name for f in fields(constants())} == {
        "kv_ratio", "wide_ratio", "layer_s", "moe_layer_s", "old_build_layer_s",
        "llamafile", "decode", "prefill",
    }  # fmt: skip
