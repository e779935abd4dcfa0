import pytest

from fakes.cases import healthy, with_envelope, with_phases
from fakes.cases import long_context as firing
from fakes.cause_tests import fires, lacks, quiet
from slowtok.detectors.causes.prompt import long_context

QUIET = [
    pytest.param(with_envelope(firing(), kv_bytes=18e6), id="just under a fifth"),
    pytest.param(with_envelope(firing(), read_bytes=0.0), id="no weights to compare with"),
]
FIRING = [
    pytest.param(
        firing(),
        5.837 * 0.5,
        "At 4,000 tokens of context each token reads 100 % more",
        id="as many bytes as the weights",
    ),
    pytest.param(
        with_envelope(firing(), kv_bytes=18.5e6),
        5.837 * 0.1674,
        "that part is normal",
        id="just over a fifth",
    ),
]
MISSING = [
    pytest.param(
        with_envelope(healthy(), kv_bytes=None), "KV bytes read per token", id="KV cache not known"
    ),
    pytest.param(
        with_envelope(healthy(), read_bytes=None), "bytes read per token", id="weights not known"
    ),
    pytest.param(
        with_envelope(firing(), context_tokens=None),
        "length of the context",
        id="context not known",
    ),
    pytest.param(with_phases(firing(), decode_tps=None), "decode rate", id="no rate"),
    pytest.param(with_phases(firing(), decode_s=None), "decode time", id="no decode time"),
]


test_quiet = quiet(long_context, QUIET)
test_fires = fires(long_context, "lost_s said", FIRING, phase="decode", informational=True)
test_names_the_missing_fact = lacks(long_context, MISSING)
