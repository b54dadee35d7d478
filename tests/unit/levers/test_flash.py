"""Peakward's own attention kernels, refused with the reason where they do not go."""

import msgspec
import pytest

from peakward.levers.catalogue import case_obstacle
from peakward.models.presets import model
from peakward.records.case import Configuration, ModelCase, Workload


def stopped(
    attention, device="cuda", capability=(9, 0), pass_="train_step", precision="bf16", **changes
):
    case = ModelCase(
        model=msgspec.structs.replace(model("small"), **changes),
        workload=Workload(batch_size=2, seq_len=64, pass_=pass_),
        configuration=Configuration(attention=attention, precision=precision),
        device=device,
    )
    return case_obstacle(case, compute_capability=capability, has_compiler=True)


@pytest.mark.parametrize("attention", ["flash", "flash-hopper"])
@pytest.mark.parametrize("pass_", ["forward", "forward_backward", "train_step", "prefill"])
def test_they_serve_what_has_as_many_queries_as_keys(attention, pass_):
    assert stopped(attention, pass_=pass_) is None
    assert stopped(attention, capability=None) is None, "of a GPU that is not known"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"device": "cpu"}, "attention flash needs a CUDA GPU, got a CPU"),
        ({"capability": (7, 5), "precision": "fp32"}, "compute capability 8.0, got 7.5"),
        ({"pass_": "decode"}, "prefill, got decode"),
        ({"head_dim": 8}, "attention flash needs a head_dim from 16 to 256, got 8"),
        ({"head_dim": 264}, "attention flash needs a head_dim from 16 to 256, got 264"),
        ({"positions": "alibi"}, "positions without a bias on the scores, got alibi"),
    ],
)
def test_flash_is_refused_with_the_reason(changes, says):
    assert says in stopped("flash", **changes)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
def test_flash_hopper_trains_with_these_heads(head_dim):
    assert stopped("flash-hopper", head_dim=head_dim) is None


@pytest.mark.parametrize("changes", [{"precision": "fp32"}, {"window": 8}, {"capability": (12, 0)}])
def test_flash_takes_any_type_and_window_and_younger_gpus(changes):
    assert stopped("flash", **changes) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"device": "cpu"}, "attention flash-hopper needs a CUDA GPU, got a CPU"),
        ({"capability": (8, 0)}, "compute capability 9.0, got 8.0"),
        (
            {"capability": (10, 0)},
            "attention flash-hopper needs compute capability 9.0, got 10.",
        ),
        ({"precision": "fp32"}, "needs the precision bf16-mixed or fp16-mixed or bf16 or fp8"),
        ({"pass_": "decode"}, "prefill, got decode"),
        ({"head_dim": 72}, "flash-hopper needs a head_dim of 64, 80, 96 or 128, got 72"),
        ({"window": 8}, "attention flash-hopper needs a model without a window, got 8"),
        ({"positions": "alibi"}, "positions without a bias on the scores, got alibi"),
    ],
)
def test_flash_hopper_is_refused_with_the_reason(changes, says):
    assert says in stopped("flash-hopper", **changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"device": "cpu", "pass_": "decode"},
            "attention flash-decode needs a CUDA GPU, got a CPU",
        ),
        ({"pass_": "prefill"}, "attention flash-decode needs the pass decode, got prefill"),
        ({"pass_": "decode", "head_dim": 264}, "needs a head_dim from 1 to 256, got 264"),
        ({"pass_": "decode", "positions": "alibi"}, "positions without a bias on the scores"),
    ],
)
def test_flash_decode_is_refused_with_the_reason(changes, says):
    assert says in stopped("flash-decode", **changes)


@pytest.mark.parametrize("changes", [{}, {"window": 8}, {"precision": "fp32"}, {"head_dim": 6}])
def test_flash_decode_serves_decode(changes):
    assert stopped("flash-decode", pass_="decode", **changes) is None


def test_head_dims_are_those_that_the_kernels_take():
    pytest.importorskip("triton")
    from peakward.kernels.ops.decode_attention import api
    from peakward.kernels.ops.flash_attention import checks
    from peakward.kernels.ops.flash_attention.hopper import refusals
    from peakward.levers.attention import _TAKEN

    assert _TAKEN["flash"].head_dims == tuple(checks.HEAD_DIMS)
    assert _TAKEN["flash-decode"].head_dims == tuple(range(1, api.MOST_HEAD_DIM + 1))
    assert _TAKEN["flash-hopper"].head_dims == refusals.HEAD_DIMS
