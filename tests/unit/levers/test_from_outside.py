"""What can be done to a module from outside."""

import msgspec
import pytest

from peakward.levers.catalogue import (
    AROUND_A_CALL,
    LEVERS,
    case_obstacle,
    outside_obstacle,
    pull,
    step_obstacle,
)
from peakward.records.case import AS_WRITTEN, ModuleCase, StepCase, Workload

OF_A_FACTORY = {
    "tf32", "bf16-mixed", "fp16-mixed", "bf16", "sdpa", "sdpa-cudnn", "flash", "flash-hopper",
    "compile", "compile-model", "cuda-graphs", "fused-optimizer", "triton-optimizer", "bf16-states",
    "8bit-states", "fused-norm", "fused-loss", "chunked-loss", "recomputed-loss", "checkpointing", "no-masks",
    "fp8",
    "torch-activation", "fused-swiglu", "fused-rope",
}  # fmt: skip


def case(source, work=None, **settings):
    return ModuleCase(
        source=source,
        fingerprint="0",
        workload=Workload(batch_size=2, seq_len=8, **(work or {})),
        configuration=msgspec.structs.replace(AS_WRITTEN, **settings),
        device="cuda",
    )


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("py:model:build", OF_A_FACTORY),
        ("live:GPT", OF_A_FACTORY),
        ("hf:org/name", OF_A_FACTORY),
    ],
)
def test_the_levers_of_each_source(source, names):
    base = case(source)
    assert outside_obstacle(base) is None
    levers = [each for each in LEVERS if pull(each, base) != base]
    assert {each.name for each in levers if outside_obstacle(pull(each, base)) is None} == names


@pytest.mark.parametrize(
    ("work", "settings", "line"),
    [
        ({"pass_": "decode"}, {}, "the pass decode needs the decoder's key-value cache"),
        ({"varying_seq_lens": (4, 8)}, {}, "varying lengths"),
        (
            {},
            {"cuda_graphs": True, "checkpointing": "every-block"},
            "cuda-graphs need a step that puts no",
        ),
        ({}, {"checkpointing": "sqrt"}, "checkpointing sqrt takes the loop over the blocks"),
    ],
)
def test_what_needs_the_decoder(work, settings, line):
    made = case("py:model:build", work, **settings)
    assert case_obstacle(made, compute_capability=None, has_compiler=True).startswith(line)


THROUGH = {
    "model": {
        *(
            "bf16-mixed",
            "bf16",
            "fp8",
            "compile",
            "compile-model",
            "checkpointing",
            "fused-norm",
            "sdpa",
            "flash",
        ),
        *("flash-hopper", "fused-loss", "chunked-loss", "recomputed-loss", "no-masks"),
        *("torch-activation", "fused-swiglu", "fused-rope"),
    },
    "optimizer": {"fused-optimizer"},
    "loader": {each.name for each in AROUND_A_CALL if "loader" in dict(each.sets)},
}


@pytest.mark.parametrize("handles", [(), ("model",), ("optimizer",), ("model", "loader")])
def test_a_live_step_takes_what_is_set_around_it_and_what_its_handles_reach(handles):
    """Every other lever says what to change."""
    step = StepCase(name="step", fingerprint="0", device="cuda", handles=handles)
    assert step_obstacle(step) is None
    levers = [each for each in dict.fromkeys((*LEVERS, *AROUND_A_CALL)) if pull(each, step) != step]
    reasons = {each: step_obstacle(pull(each, step)) for each in levers}
    around = {each.name for each in AROUND_A_CALL} - THROUGH["loader"]
    taken = around.union(*(THROUGH[each] for each in handles))
    assert {each.name for each, reason in reasons.items() if reason is None} == taken
    assert all(": " in reason for reason in reasons.values() if reason is not None)


def test_what_the_step_was_written_with_is_no_obstacle():
    written = msgspec.structs.replace(AS_WRITTEN, precision="fp16-mixed", optimizer="adamw-triton")
    step = StepCase(
        name="step", fingerprint="0", device="cuda", written=written, configuration=written
    )
    assert step_obstacle(step) is None


def test_what_feeds_a_case_is_its_workload_s():
    settings = {"more": (("loader", "workers:2"),)}
    made = case("py:model:build", **settings)
    found = case_obstacle(made, compute_capability=None, has_compiler=True)
    assert (
        found
        == "loader workers:2 needs a live step with a loader: a case's workload says how it is fed"
    )
