"""What a mixture of experts is refused with, and that a dense model is not."""

from typing import Any

import msgspec
import pytest

from peakward.levers.catalogue import case_obstacle, together_obstacle
from peakward.models.presets import model
from peakward.records.case import Configuration, ModelCase, Workload

MIXED = {"n_experts": 4, "n_active_experts": 2}


def case(shape: dict[str, int], **configuration: Any) -> ModelCase:
    return ModelCase(
        model=msgspec.structs.replace(model("tiny"), **shape),
        workload=Workload(batch_size=2, seq_len=64),
        configuration=Configuration(**configuration),
        device="cuda",
    )


def said(at: ModelCase, capability: tuple[int, int] | None = (9, 0)) -> str:
    return str(together_obstacle(at, compute_capability=capability))


@pytest.mark.parametrize(
    ("shape", "configuration", "reason"),
    [
        ({}, {"precision": "fp8"}, "precision fp8 needs a dense model, got 4 experts"),
        ({}, {"cuda_graphs": True}, "the precision bf16-mixed or bf16, got fp32"),
        ({}, {"cuda_graphs": True, "precision": "tf32"}, "bf16-mixed or bf16, got tf32"),
        (
            {"d_ff": 100},
            {"cuda_graphs": True, "precision": "bf16"},
            "widths that divide by 8, got d_model 256 and d_ff 100",
        ),
        (
            {"d_model": 252},
            {"cuda_graphs": True, "precision": "bf16"},
            "widths that divide by 8, got d_model 252 and d_ff 1024",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    shape: dict[str, int], configuration: dict[str, Any], reason: str
) -> None:
    assert reason in said(case(MIXED | shape, **configuration))
    assert reason in str(
        case_obstacle(
            case(MIXED | shape, **configuration), compute_capability=(9, 0), has_compiler=True
        )
    )
    assert together_obstacle(case(shape, **configuration), compute_capability=(9, 0)) is None


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16"])
def test_graphs_need_a_kernel_of_the_device(precision: str) -> None:
    captured = case(MIXED, cuda_graphs=True, precision=precision)
    assert "compute capability 9 or 10, got 8.0" in said(captured, (8, 0))
    assert "compute capability 9 or 10, got 12.0" in said(captured, (12, 0))
    for capability in ((9, 0), (10, 0), None):
        assert together_obstacle(captured, compute_capability=capability) is None


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16"])
def test_uncaptured_experts_run_in_any_other_precision(precision: str) -> None:
    at = case(MIXED | {"d_ff": 100}, precision=precision)
    assert together_obstacle(at, compute_capability=(8, 0)) is None
