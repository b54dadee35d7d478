"""Which kernel is chosen: what the captures hold is in `test_against_h200`, here torch's rules."""

import msgspec
import pytest

from peakward.prediction.operators.attention_backend import (
    HOPPER,
    Inputs,
    first_backend,
    inputs,
    named_backend,
)
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape

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
        ({"compute_capability": AMPERE}, "flash"),
        ({"compute_capability": AMPERE, "masked": True}, "efficient"),
        ({"compute_capability": AMPERE, "masked": True, "grouped": True}, "math"),
        ({"compute_capability": ADA, "head_dim": 200}, "efficient"),
        ({"compute_capability": ADA, "head_dim": 200, "differentiated": False}, "flash"),
        ({"compute_capability": ADA, "head_dim": 256}, "flash"),
        ({"compute_capability": BLACKWELL}, "cudnn"),
        ({"compute_capability": BLACKWELL, "head_dim": 136}, "flash"),
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


SHAPE = ModelShape(
    name="one",
    vocab_size=50,
    n_layers=2,
    d_model=16,
    d_ff=24,
    n_heads=4,
    n_kv_heads=4,
    head_dim=8,
    max_seq_len=64,
)


def asked(pass_="train_step", **changes):
    case = ModelCase(
        model=msgspec.structs.replace(SHAPE, **changes),
        workload=Workload(batch_size=2, seq_len=12, pass_=pass_),
        configuration=Configuration(attention="sdpa"),
        device="cuda",
    )
    return inputs(case, "bfloat16", AMPERE)


def test_inputs_are_those_of_the_case():
    assert asked() == PLAIN._replace(head_dim=8, n_keys=12, compute_capability=AMPERE)
    assert asked("prefill") == asked("forward")
    one_query = asked("decode", window=5)
    assert (one_query.n_keys, one_query.masked, one_query.differentiated) == (5, False, False)
    assert asked(n_kv_heads=2).grouped
    assert not asked("forward").differentiated


def test_cudnn_takes_one_query_but_not_one_key():
    assert first_backend(PLAIN._replace(n_keys=2, differentiated=False)) == "cudnn"
    assert first_backend(PLAIN._replace(n_keys=1, differentiated=False)) == "flash"


def test_a_window_masks_only_where_it_is_shorter_than_the_sequence():
    assert [asked(window=each).masked for each in (11, 12, None)] == [True, False, False]
    assert asked(positions="alibi").masked
