"""Which way to compute attention can run where."""

import msgspec
import pytest

from peakward.studies.attention_arms import (
    COMPILED,
    COMPILED_TF32,
    FLASH,
    FLASH_HOPPER,
    FLEX,
    NAIVE,
    SDPA,
    Arm,
    head,
)


@pytest.fixture
def why(setting):
    """why(arm, precision, device=, head_dim=, pass_=, capability=): the obstacle."""

    def ask(arm, precision="bf16", device="cuda", head_dim=64, pass_="backward", **changes):
        here = setting(device=device)
        environment = msgspec.structs.replace(
            here.environment,
            compute_capability=changes.pop("capability", here.environment.compute_capability),
        )
        here = msgspec.structs.replace(here, environment=environment, **changes)
        sizes = {"batch_size": 1, "seq_len": 64, "head_dim": head_dim}
        return head(arm, precision, pass_, here, **sizes).absent

    return ask


@pytest.mark.parametrize("arm", [NAIVE, COMPILED, SDPA, FLEX, FLASH, FLASH_HOPPER])
def test_a_hopper_gpu_runs_all_in_bf16(arm, why):
    assert why(arm) is None


@pytest.mark.parametrize(
    ("arm", "options", "reason"),
    [
        (FLASH_HOPPER, {"precision": "fp32"}, "a type of 16 bits, got fp32"),
        (FLASH_HOPPER, {"head_dim": 32}, "heads of 64, 80, 96 or 128, got 32"),
        (FLASH_HOPPER, {"capability": "8.0"}, "capability 9, got 8"),
        (FLASH, {"capability": "7.5"}, "capability 8.0"),
        (COMPILED_TF32, {"precision": "fp32", "capability": "7.5"}, "tf32 needs a GPU"),
        (Arm(name="", attention="sdpa-cudnn"), {"precision": "fp32"}, "got float32"),
        (Arm(name="", attention="sdpa-flash"), {"precision": "fp32"}, "got float32"),
        (Arm(name="", attention="sdpa-cudnn"), {"head_dim": 12}, "not a multiple of 8"),
        (FLASH, {"device": "cpu"}, "does not run on a CPU"),
        (Arm(name="", attention="sdpa-cudnn"), {"device": "cpu"}, "on a GPU alone"),
        (COMPILED_TF32, {"device": "cpu"}, "a CPU has no tf32"),
        (FLEX, {"device": "cpu"}, "no backward pass on a CPU"),
        (FLEX, {"device": "cpu", "has_compiler": False}, "needs a C"),
        (COMPILED, {"has_compiler": False}, "needs a C"),
    ],
)
def test_the_reason_is_said(arm, options, reason, why):
    assert reason in why(arm, **options)


def test_flex_runs_forward_on_a_cpu(why):
    assert why(FLEX, "fp32", "cpu", pass_="forward") is None


def test_backends_of_both_precisions_run_in_fp32(why):
    for name in ("sdpa-efficient", "sdpa-math"):
        assert why(Arm(name=name, attention=name), "fp32") is None


def test_tf32_takes_the_place_of_fp32(setting):
    sizes = {"batch_size": 1, "seq_len": 64, "head_dim": 64}
    found = head(COMPILED_TF32, "fp32", "forward", setting(), **sizes)
    assert (found.case.precision, found.precision) == ("tf32", "fp32")
