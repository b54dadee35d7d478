"""A step of decode in Peakward's own fused kernels, in Triton's interpreter on a CPU."""

import msgspec
import pytest
import torch

from peakward.lab.numerics.verify import verify
from peakward.levers.catalogue import case_obstacle, lever, obstacle, pull
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.model_shape import ModelShape

pytest.importorskip("triton")
SHAPE = ModelShape(
    name="t",
    vocab_size=50,
    n_layers=1,
    d_model=32,
    d_ff=48,
    n_heads=4,
    n_kv_heads=2,
    head_dim=8,
    max_seq_len=64,
)
FUSED = (("decode_step", "fused"),)


def case(*, device="cpu", batch_size=1, **configuration):
    return ModelCase(
        model=SHAPE,
        workload=Workload(batch_size=batch_size, seq_len=24, pass_="decode"),
        configuration=Configuration(**configuration),
        device=device,
    )


@pytest.mark.parametrize("kept", ["static", "int8"])
@pytest.mark.parametrize("change", [{}, {"n_kv_heads": 4, "qkv_bias": True, "tied_head": True}])
def test_it_computes_what_separate_operators_do(change, kept):
    if torch.cuda.is_available():
        pytest.skip("tests/gpu has it compiled")
    shape = msgspec.structs.replace(SHAPE, **change)
    base, fused = (
        msgspec.structs.replace(case(kv_cache=kept, more=more), model=shape) for more in ((), FUSED)
    )
    found = verify(base, fused, "reordered")
    assert found.verdict == "holds", found


def test_obstacles():
    def told(**change):
        configuration = {
            name: change.pop(name)
            for name in ("kv_cache", "compile", "attention", "weights")
            if name in change
        }
        given = case(device="cuda", precision="bf16", more=FUSED, **configuration)
        given = msgspec.structs.replace(given, model=msgspec.structs.replace(given.model, **change))
        return case_obstacle(given, compute_capability=(9, 0), has_compiler=True)

    def refused(given):
        return obstacle(lever("fused-step"), given, compute_capability=(9, 0), has_compiler=True)

    at = case(device="cuda", precision="bf16")
    assert refused(at) is None
    assert "precision" in refused(case(device="cuda", precision="bf16-mixed"))
    assert dict(pull(lever("fused-step"), at).configuration.more) == dict(FUSED)
    assert told() is None
    assert "needs RoPE, got learned" in told(positions="learned")
    assert "needs a d_model of at most 4096" in told(d_model=5120)
    assert "needs no window, got 5" in told(window=5)
    assert "a gated silu" in told(gated=False)
    assert told(kv_cache="int8", attention="flash-decode") is None
    assert "kv-cache fp8" in told(kv_cache="fp8", attention="flash-decode")
    assert "compile default" in told(compile="default")
    wide_groups = {"d_model": 512, "d_ff": 512, "n_heads": 8, "n_kv_heads": 8, "head_dim": 64}
    assert told(weights="int4:128-calibrated", **wide_groups) is None
    assert "a scale for 128 inputs" in told(weights="int4:32-calibrated", **wide_groups)
    several = case(device="cuda", precision="bf16", more=FUSED, batch_size=4)
    on_bytes = case(
        device="cuda", precision="bf16", more=FUSED, batch_size=4, kv_cache="int8",
        attention="flash-decode",
    )  # fmt: skip
    narrow = {"weights": "int8", "more": FUSED, "batch_size": 2}
    of_bytes = case(device="cuda", precision="bf16", **narrow)
    for at, most in ((several, None), (on_bytes, None), (of_bytes, 1)):
        reason = case_obstacle(at, compute_capability=(9, 0), has_compiler=True)
        assert reason is None if most is None else f"a batch of at most {most} beside" in reason


@pytest.mark.parametrize("name", ["sdpa", "flash-decode", "fused-norm", "fused-rope"])
def test_what_it_computes_itself_is_no_lever_beside_it(name):
    def told(name, more):
        given = case(device="cuda", precision="bf16", more=more)
        return obstacle(lever(name), given, compute_capability=(9, 0), has_compiler=True) or ""

    beside = "does nothing beside decode-step fused, which computes that itself"
    assert told(name, FUSED) == beside
    assert told(name, ()) != beside
    assert told("int8-cache", FUSED) != beside
