"""What stands in the way of a key-value cache."""

from typing import Any

import pytest

from peakward.levers.catalogue import case_obstacle, together_obstacle
from peakward.models.presets import model
from peakward.records.case import Configuration, ModelCase, Workload


def together(at: ModelCase) -> str | None:
    return together_obstacle(at, compute_capability=None)


def case(pass_: Any, checkpointing: Any = "none", **workload: Any) -> ModelCase:
    return ModelCase(
        model=model("tiny"),
        workload=Workload(batch_size=2, seq_len=64, pass_=pass_, **workload),
        configuration=Configuration(checkpointing=checkpointing),
        device="cpu",
    )


@pytest.mark.parametrize("pass_", ["prefill", "decode"])
def test_is_named(pass_: str) -> None:
    assert together(case(pass_)) is None
    assert "accumulate 2 needs" in str(together(case(pass_, accumulate=2)))
    assert "varying lengths" in str(together(case(pass_, varying_seq_lens=(8, 64))))
    assert "checkpointing sqrt" in str(together(case(pass_, "sqrt")))


@pytest.mark.parametrize("pass_", ["forward", "train_step"])
def test_other_passes_have_none(pass_: str) -> None:
    assert together(case(pass_, "sqrt", accumulate=2, varying_seq_lens=(8, 64))) is None


def test_it_is_the_case_s() -> None:
    found = case_obstacle(case("decode", accumulate=2), compute_capability=None, has_compiler=True)
    assert found == "accumulate 2 needs a pass that trains, got decode"
