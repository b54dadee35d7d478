"""A captured module's time, against the same module in closed form."""

import msgspec
import pytest
import torch

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.module_capture import capture_module
from peakward.models.presets import model
from peakward.prediction.time.attention import AttentionModel
from peakward.prediction.time.module import module_time
from peakward.prediction.time.step import step_time
from peakward.records.case import Configuration, ModelCase, StepCase, Workload
from tiers import in_full

from .round_device import device

MIXTURE = msgspec.structs.replace(model("small"), n_experts=8, n_active_experts=2)
SHAPES = {"small": model("small"), "gpt2": model("gpt2"), "mixture": MIXTURE}


@pytest.mark.parametrize("name", ["small", "mixture", *in_full(["gpt2"])])
@pytest.mark.parametrize("attention", ["naive", *in_full(["sdpa"])])
@pytest.mark.parametrize("pass_", ["train_step", *in_full(["forward"])])
def test_the_reference_decoder_as_anyone_s_module_takes_as_long_as_in_closed_form(
    name, attention, pass_
):
    """On a device that never waits for its host, to 1.5%: layouts are seen there and derived here."""
    shape = SHAPES[name]
    with torch.device("meta"):
        module = Decoder(shape, implementation(attention)).bfloat16()
    ids = torch.zeros(4, 256, dtype=torch.long)
    inputs = (ids,) if pass_ == "forward" else (ids, ids)
    on = device(call_s=0.0)
    found = module_time(capture_module(module, inputs, pass_=pass_), on)
    case = ModelCase(
        model=shape,
        workload=Workload(batch_size=4, seq_len=256, pass_=pass_),
        configuration=Configuration(precision="bf16", attention=attention),
        device="cuda",
    )
    closed = step_time(case, on)
    assert found.step_s.estimate == pytest.approx(closed.step_s.estimate, rel=0.015)
    for mine, other in zip(found.phases, closed.phases, strict=True):
        assert mine.phase == other.phase
        assert mine.device_s == pytest.approx(other.device_s, rel=0.02)


def test_it_stands_under_its_own_name():
    capture = capture_module(torch.nn.Linear(8, 8), (torch.randn(4, 8),), tokens=4)
    found = module_time(capture, device())
    assert found.case == StepCase(
        name="Linear forward", fingerprint=capture.fingerprint, device="cuda", tokens_per_step=4.0
    )


def test_a_single_query_is_bound_by_reading_keys_and_values():
    """32 heads of 8192 positions of 128 in bf16: 64 MiB of keys, which are the values too, at 1 TB/s."""

    class Decoding(torch.nn.Module):
        def forward(self, q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    q = torch.empty(1, 32, 1, 128, dtype=torch.bfloat16, device="meta")
    k = torch.empty(1, 32, 8192, 128, dtype=torch.bfloat16, device="meta")
    rates = {("bf16", "forward"): AttentionModel(1e-15, 0.0)}
    on = device(call_s=0.0, attention=rates)
    found = module_time(capture_module(Decoding(), (q, k, k)), on).operators[0]
    assert found.bound == "memory"
    assert found.device_s == pytest.approx(64 * 2**20 / 1e12, abs=3 * on.traffic.launch_s)


def test_attention_without_a_mask_computes_twice_as_much():
    class Attention(torch.nn.Module):
        def __init__(self, causal):
            super().__init__()
            self.causal = causal

        def forward(self, q):
            attend = torch.nn.functional.scaled_dot_product_attention
            return attend(q, q, q, is_causal=self.causal)

    q = torch.randn(2, 4, 512, 64)
    on = device(call_s=0.0)
    masked, whole = (
        module_time(capture_module(Attention(causal), (q,)), on).operators[0]
        for causal in (True, False)
    )
    launch_s = on.traffic.launch_s
    assert whole.device_s - launch_s == pytest.approx(2 * (masked.device_s - launch_s))


def test_a_read_of_a_value_makes_the_host_wait():
    class Longest(torch.nn.Module):
        def forward(self, x, lengths):
            return x[:, : int(lengths.max())] * 2

    x = torch.empty(2, 16, 8)
    found = module_time(capture_module(Longest(), (x, torch.tensor([3, 5]))), device())
    assert [each.n_waits for each in found.phases] == [1]


@pytest.mark.parametrize("call_us", [100.0, 0.001])
def test_on_another_host_a_step_may_take_half_of_its_calls_and_twice(call_us):
    """Where the host bounds it; the device's time is as sure as ever."""
    capture = capture_module(torch.nn.Linear(8, 8), (torch.randn(4, 8),))
    own, other = (
        module_time(capture, device(call_s=call_us * 1e-6, host_is_known=known)).step_s
        for known in (True, False)
    )
    assert own.estimate == other.estimate
    if call_us < 1:
        assert own == other
    else:
        assert other.high == pytest.approx(2 * own.estimate, rel=0.05)
        assert other.low == pytest.approx(own.estimate / 2, rel=0.05)
