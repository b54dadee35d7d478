"""Which kernel is chosen: what the captures hold is in `test_against_h200`, here torch's rules."""

import pytest

from peakward.hardware.attention_backend import (
    HOPPER,
    Inputs,
    first_backend,
    named_backend,
)
from peakward.records.errors import PeakwardError

PLAIN = Inputs(
    dtype="bfloat16",
    head_dim=64,
    masked=False,
    grouped=False,
    differentiated=True,
    n_keys=512,
    compute_capability=HOPPER,
)
AMPERE, ADA, BLACKWELL = (8, 0), (8, 9), (10, 0)


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({}, "cudnn"),
        ({"dtype": "float16", "masked": True, "grouped": True}, "cudnn"),
        ({"head_dim": 256}, "cudnn"),
        ({"head_dim": 6}, "flash"),
        ({"head_dim": 6, "grouped": True}, "flash"),
        ({"head_dim": 6, "masked": True}, "math"),
        ({"head_dim": 264}, "efficient"),
        ({"dtype": "float32"}, "efficient"),
        ({"dtype": "float32", "head_dim": 12, "masked": True}, "efficient"),
        ({"dtype": "float32", "head_dim": 6}, "math"),
        ({"dtype": "float32", "grouped": True}, "math"),
        ({"broadcast": True}, "math"),
        ({"compute_capability": AMPERE}, "flash"),
        ({"compute_capability": AMPERE, "masked": True}, "efficient"),
        ({"compute_capability": AMPERE, "masked": True, "grouped": True}, "math"),
        ({"compute_capability": ADA, "head_dim": 200}, "efficient"),
        ({"compute_capability": ADA, "head_dim": 200, "differentiated": False}, "flash"),
        ({"compute_capability": ADA, "head_dim": 256}, "flash"),
        ({"compute_capability": BLACKWELL}, "cudnn"),
        ({"compute_capability": BLACKWELL, "head_dim": 136}, "flash"),
        ({"head_dim": 192, "value_dim": 128}, "cudnn"),
        ({"head_dim": 96, "value_dim": 64}, "cudnn"),
        ({"head_dim": 192, "value_dim": 128, "compute_capability": AMPERE}, "efficient"),
        ({"head_dim": 192, "value_dim": 128, "compute_capability": BLACKWELL}, "cudnn"),
        ({"head_dim": 192, "value_dim": 64, "compute_capability": BLACKWELL}, "efficient"),
        ({"head_dim": 64, "value_dim": 68, "grouped": True}, "math"),
    ],
)
def test_sdpa_takes_the_first_that_serves(changes, chosen):
    assert first_backend(PLAIN._replace(**changes)) == chosen


@pytest.mark.parametrize(
    ("backend", "changes", "reason"),
    [
        ("cudnn", {"dtype": "float32"}, "float32"),
        ("cudnn", {"head_dim": 12}, "head_dim 12, not a multiple of 8"),
        ("cudnn", {"head_dim": 264}, "head_dim 264, above 256"),
        ("flash", {"dtype": "float32"}, "float32"),
        ("cudnn", {"value_dim": 12}, "head_dim 12, not a multiple of 8"),
        ("flash", {"value_dim": 32}, "values of head_dim 32 beside keys of 64"),
        ("flash", {"masked": True}, "a window or ALiBi"),
        ("flash", {"head_dim": 264}, "head_dim 264, above 256"),
        ("efficient", {"grouped": True}, "heads that share"),
        ("efficient", {"head_dim": 12}, "head_dim 12, not a multiple of 8"),
        ("efficient", {"head_dim": 6, "dtype": "float32"}, "head_dim 6, not a multiple of 4"),
    ],
)
def test_a_named_one_that_cannot_serve_is_refused_by_name(backend, changes, reason):
    line = f"^expected inputs that torch's {backend} attention takes, got {reason}.*: use sdpa"
    with pytest.raises(PeakwardError, match=line):
        named_backend(backend, PLAIN._replace(**changes))


@pytest.mark.parametrize(
    "changes", [{}, {"masked": True, "grouped": True}, {"dtype": "float32", "head_dim": 3}]
)
def test_math_serves_anything(changes):
    assert named_backend("math", PLAIN._replace(**changes)) == "math"


def test_cudnn_takes_one_query_but_not_one_key():
    assert first_backend(PLAIN._replace(n_keys=2, differentiated=False)) == "cudnn"
    assert first_backend(PLAIN._replace(n_keys=1, differentiated=False)) == "flash"


def test_torch_may_be_left_fewer():
    assert first_backend(PLAIN, ("math", "flash")) == "flash"
    with pytest.raises(PeakwardError, match="got none among flash, cudnn: let torch take math"):
        first_backend(PLAIN._replace(dtype="float32"), ("flash", "cudnn"))


def test_types_of_64_bits_are_written_out():
    assert first_backend(PLAIN._replace(dtype="float64")) == "math"
