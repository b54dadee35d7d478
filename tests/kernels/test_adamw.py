"""The AdamW kernel against its reference in fp64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.lab.ops.adamw import reference

SETTINGS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
kernel = pytest.importorskip("peakward.lab.ops.adamw.triton")


def run(update, tensors, shared_of, n_steps):
    parameter, gradient, first, second = tensors
    for count in range(1, n_steps + 1):
        step = torch.tensor(float(count))
        update(parameter, gradient * count, first, second, shared_of(step), **SETTINGS)
    return parameter, first, second


def relative(got, expected):
    return float((got.double() - expected).norm() / expected.norm())


@settings(max_examples=15, deadline=None)
@given(
    n=st.sampled_from([1, 17, 127, 1000, 4096, 4097]),
    n_steps=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_is_as_close_to_fp64_as_torch_is(device, n, n_steps, seed):
    torch.manual_seed(seed)
    drawn = (torch.randn(n) * 0.02, torch.randn(n) * 0.01, torch.zeros(n), torch.zeros(n))
    oracle = run(reference.update, [each.double() for each in drawn], lambda step: step, n_steps)
    got = run(
        kernel.update,
        [each.clone() for each in drawn],
        lambda step: kernel.scales(step, lr=SETTINGS["lr"], betas=SETTINGS["betas"]),
        n_steps,
    )
    parameter = torch.nn.Parameter(drawn[0].clone())
    peer = torch.optim.AdamW([parameter], **SETTINGS, foreach=False)
    for count in range(1, n_steps + 1):
        parameter.grad = drawn[1] * count
        peer.step()
    state = peer.state[parameter]
    theirs = (parameter.detach(), state["exp_avg"], state["exp_avg_sq"])
    roundoff = 2.0**-24
    for mine, other, exact in zip(got, theirs, oracle, strict=True):
        # Each step rounds the stored value once: what torch's own error cannot be under by luck.
        assert relative(mine, exact) <= 2 * max(relative(other, exact), n_steps * roundoff)


def test_a_nan_gradient_reaches_the_parameter(device):
    tensors = [torch.ones(20) for _ in range(4)]
    tensors[1][3] = torch.nan
    shared = kernel.scales(torch.tensor(1.0), lr=1e-3, betas=(0.9, 0.999))
    kernel.update(*tensors, shared, **SETTINGS)
    assert tensors[0].isnan().nonzero().flatten().tolist() == [3]


def test_scales_keep_their_digits_at_the_first_step(device):
    shared = kernel.scales(torch.tensor(1.0), lr=1.0, betas=(0.9, 0.999))
    assert shared.tolist() == pytest.approx([10.0, 1000.0], rel=2.0**-23)
