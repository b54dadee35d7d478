"""What Peakward's own kernels do not go with, and what they need."""

from typing import Any

import msgspec
import pytest

from peakward.levers.catalogue import case_obstacle, lever, pull, together_obstacle
from peakward.models.presets import model
from peakward.records.case import Configuration, ModelCase, Workload


def together(at: ModelCase) -> str | None:
    return together_obstacle(at, compute_capability=None)


def case(shape: dict[str, Any] | None = None, **configuration: Any) -> ModelCase:
    return ModelCase(
        model=msgspec.structs.replace(model("tiny"), **(shape or {})),
        workload=Workload(batch_size=2, seq_len=64),
        configuration=Configuration(**configuration),
        device="cuda",
    )


INT8, INT4 = {"weights": "int8"}, {"weights": "int4:128"}


def without_gradients(shape: dict[str, Any], **configuration: Any) -> ModelCase:
    work = Workload(batch_size=2, seq_len=64, pass_="decode")
    wide = {"d_model": 128, "d_ff": 256, "n_heads": 2, "n_kv_heads": 2, "head_dim": 64}
    return msgspec.structs.replace(case({**wide, **shape}, **configuration), workload=work)


@pytest.mark.parametrize(
    ("shape", "settings", "says"),
    [
        ({"d_model": 96}, INT4, "int4:128 need d_model in whole groups of 128, got 96; int8 takes any"),
        ({"n_heads": 3, "n_kv_heads": 3}, INT4, "n_heads · head_dim in whole groups of 128, got 192"),
        ({"d_ff": 320}, INT4, "need d_ff in whole groups of 128, got 320"),
        ({"n_experts": 4, "n_active_experts": 2}, INT8, "of linear layers, got a mixture of 4 experts"),
    ],
)  # fmt: skip
def test_what_quantised_weights_do_not_go_with(
    shape: dict[str, Any], settings: dict[str, Any], says: str
) -> None:
    made = without_gradients(shape, **settings)
    assert says in str(together(made))


def test_quantised_weights_have_no_gradient_and_are_not_of_fp8() -> None:
    """Said where a step is prepared; where levers are chosen, what they need says it before."""
    assert "weights int8 have no gradient" in str(together(case(**INT8)))
    narrow = without_gradients({}, **INT8, precision="fp8")
    assert "got fp8: take bf16-mixed" in str(together(narrow))
    found = case_obstacle(narrow, compute_capability=(9, 0), has_compiler=True)
    assert "weights int8 needs the precision" in str(found)
    found = case_obstacle(case(**INT8), compute_capability=(9, 0), has_compiler=True)
    assert "weights int8 needs the pass forward or prefill or decode, got train_step" in str(found)


@pytest.mark.parametrize("settings", [INT8, INT4, {**INT4, "compile": "default", "norm": "fused"}])
def test_what_they_go_with(settings: dict[str, Any]) -> None:
    made = without_gradients({"bias": True}, **settings, precision="bf16-mixed", cuda_graphs=True)
    assert case_obstacle(made, compute_capability=(8, 0), has_compiler=True) is None
    if settings == INT8:
        odd = without_gradients({"d_model": 100, "d_ff": 30}, **settings)
        assert case_obstacle(odd, compute_capability=(8, 0), has_compiler=True) is None


@pytest.mark.parametrize(
    ("shape", "settings", "says"),
    [
        ({"positions": "learned"}, {"rope": "fused"}, "rope fused needs positions of rope, got learned"),
        ({"gated": False}, {"swiglu": "fused"}, "swiglu fused needs a gated silu, got silu without a gate"),
        ({"activation": "gelu"}, {"swiglu": "fused"}, "needs a gated silu, got gelu gated"),
        ({"d_model": 36}, {"loss": "recomputed", "precision": "bf16"}, "d_model of whole 16 bytes, got 36"),
        ({"d_model": 34}, {"loss": "recomputed"}, "got 34 in fp32; chunked takes any"),
    ],
)  # fmt: skip
def test_what_a_kernel_does_not_go_with(
    shape: dict[str, Any], settings: dict[str, Any], says: str
) -> None:
    made = case(shape, **settings)
    assert says in str(together(made))
    assert says in str(case_obstacle(made, compute_capability=(9, 0), has_compiler=True))


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ({}, {"norm": "fused", "rope": "fused", "swiglu": "fused", "loss": "recomputed"}),
        ({"norm": "layernorm", "positions": "learned", "gated": False}, {"norm": "fused"}),
        ({"d_model": 36}, {"loss": "recomputed", "precision": "tf32"}),
        ({"d_model": 34}, {"loss": "chunked", "precision": "bf16"}),
        ({"positions": "learned", "activation": "gelu"}, {}),
    ],
)
def test_what_it_goes_with(shape: dict[str, Any], settings: dict[str, Any]) -> None:
    assert together(case(shape, **settings)) is None


@pytest.mark.parametrize("name", ["fused-norm", "fused-rope", "fused-swiglu", "int8-weights"])
def test_an_older_gpu_is_refused(name: str) -> None:
    pulled = pull(lever(name), without_gradients({}))
    found = case_obstacle(pulled, compute_capability=(7, 5), has_compiler=True)
    assert "needs compute capability 8.0, got 7.5" in str(found)
