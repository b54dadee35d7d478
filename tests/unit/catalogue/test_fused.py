"""What Peakward's own kernels do not go with, and what they need."""

from typing import Any

import msgspec
import pytest

from peakward.catalogue.fused import fused_obstacle
from peakward.catalogue.levers import case_obstacle, lever, pull
from peakward.catalogue.models import model
from peakward.records.case import Configuration, ModelCase, Workload


def case(shape: dict[str, Any] | None = None, **configuration: Any) -> ModelCase:
    return ModelCase(
        model=msgspec.structs.replace(model("tiny"), **(shape or {})),
        workload=Workload(batch_size=2, seq_len=64),
        configuration=Configuration(**configuration),
        device="cuda",
    )


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
    assert says in str(fused_obstacle(made))
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
    assert fused_obstacle(case(shape, **settings)) is None


@pytest.mark.parametrize("name", ["fused-norm", "fused-rope", "fused-swiglu", "chunked-loss"])
def test_an_older_gpu_is_refused(name: str) -> None:
    pulled = pull(lever(name), case())
    found = case_obstacle(pulled, compute_capability=(7, 5), has_compiler=True)
    assert "needs compute capability (8, 0), got (7, 5)" in str(found)
