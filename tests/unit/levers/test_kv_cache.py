"""What a decode step keeps of earlier tokens: nothing, keys and values, or bytes of them."""

import msgspec
import pytest
import torch

from peakward.lab.levers.prepare import prepare
from peakward.lab.numerics.verify import spacing, verify
from peakward.levers.catalogue import case_obstacle, lever, pull, setting_obstacle
from peakward.prediction.memory.peak import peak_memory
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.traffic import cached_bytes, compulsory_bytes
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.case_key import case_key
from peakward.records.model_shape import ModelShape

SHAPE = ModelShape(
    name="t",
    vocab_size=200,
    n_layers=2,
    d_model=64,
    d_ff=128,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    max_seq_len=512,
)


def case(kept="static", pass_="decode", device="cpu", **configuration):
    return ModelCase(
        model=SHAPE,
        workload=Workload(batch_size=2, seq_len=32, pass_=pass_),
        configuration=Configuration(kv_cache=kept, **configuration),
        device=device,
    )


def test_keeping_is_a_lever_over_keeping_nothing():
    naive = case("none")
    assert pull(lever("kv-cache"), naive) == case()
    assert case_key(pull(lever("kv-cache"), naive)) == case_key(case())
    assert pull(lever("int8-cache"), naive) == case("int8", attention="flash-decode")


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_a_step_with_a_cache_computes_what_one_without_does(attention, window):
    """Both against one oracle, which has read the tokens before the newest."""
    base, kept = case("none", attention=attention), case(attention=attention)
    shape = msgspec.structs.replace(SHAPE, window=window)
    base, kept = (msgspec.structs.replace(each, model=shape) for each in (base, kept))
    found = verify(base, kept, "reordered")
    assert found.verdict == "holds", found
    assert all(0 < each.base_error < 1e-5 for each in found.errors)


@pytest.mark.parametrize("stored", ["int8", "fp8"])
def test_bytes_err_as_much_as_their_rounding_says(stored):
    found = verify(case(), case(stored), "approximate")
    assert found.verdict == "holds", found
    (error,) = found.errors
    assert error.base_error * 100 < error.bound / 6 < error.candidate_error < error.bound


def test_a_worse_rounding_of_the_cache_is_found(monkeypatch):
    from peakward.lab.inference import cache

    def halved(x, dtype):
        stored, scale = cache.dequantized, x.abs().amax(-1).float() / 7
        del stored
        steps = (x.float() / scale[..., None]).round()
        return steps.clamp(-7, 7).to(dtype), scale

    monkeypatch.setattr(cache, "quantized", halved)
    assert verify(case(), case("int8"), "approximate").verdict == "violated"


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_spacing_is_the_distance_between_neighbours(dtype):
    every = torch.arange(256, dtype=torch.uint8).view(dtype).double()
    values = every[every.isfinite() & (every >= 0)].unique()
    apart = values.diff()
    assert torch.equal(spacing(values[:-1].to(dtype)), apart)


def test_the_kernel_reads_bytes_as_they_are_widened():
    """In Triton's interpreter, on a CPU."""
    if torch.cuda.is_available():
        pytest.skip("tests/gpu has it compiled")
    with prepare(case("int8")) as widened, prepare(case("int8", attention="flash-decode")) as read:
        for step in (widened, read):
            step.step()
        torch.testing.assert_close(read.output, widened.output, rtol=1e-5, atol=1e-5)


def test_obstacles():
    def told(given):
        return case_obstacle(given, compute_capability=(9, 0), has_compiler=True)

    assert told(case("none")) is None
    assert "kv-cache none needs the pass decode, got prefill" in told(case("none", "prefill"))
    assert "flash-decode" in told(case("none", device="cuda", attention="flash-decode"))
    assert "needs a CUDA GPU, got a CPU" in told(case("int8"))
    old = setting_obstacle("kv_cache", case("fp8", device="cuda"), compute_capability=(8, 0))
    assert "8.9" in old


def test_keeping_nothing_is_predicted_as_a_forward_pass_without_a_loss():
    naive, forward = case("none", device="cuda"), case(pass_="forward", device="cuda")
    assert op_graph(naive) == op_graph(forward)
    held, of_forward = (peak_memory(each).peak for each in (naive, forward))
    assert held.cache_bytes == 0
    assert held.parameters_bytes == of_forward.parameters_bytes
    # What the maths of the new tokens needs is the floor of both.
    assert compulsory_bytes(naive) == compulsory_bytes(case(device="cuda"))


def test_bytes_of_the_cache():
    elements = 2 * 32 * 2 * SHAPE.n_layers * SHAPE.n_kv_heads
    assert cached_bytes(case(device="cuda", precision="bf16")) == elements * 16 * 2
    assert cached_bytes(case("int8", device="cuda", precision="bf16")) == elements * (16 + 4)
