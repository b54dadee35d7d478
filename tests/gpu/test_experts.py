"""A mixture of experts on CUDA: its grouped matmul, and steps that hold it, captured or not."""

import pytest
import torch

from peakward.kernels.ops.grouped_matmul import api, reference
from peakward.lab.levers.prepare import prepare

pytestmark = pytest.mark.gpu

EXPERTS = {"n_experts": 4, "n_active_experts": 2}
ALL_ACTIVE = {"n_experts": 4, "n_active_experts": 4}
"""For comparisons with fp64: rounding that turned a choice would be no error of arithmetic."""

one_kernel = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability()[0] not in (9, 10),
    reason="torch has the kernel for compute capability 9 and 10",
)


@one_kernel
@pytest.mark.parametrize("sizes", [(64, 64), (1, 200, 7), (0, 130, 0, 3), (128, 0), (5,)], ids=str)
@pytest.mark.parametrize("widths", [(64, 96), (1024, 512), (8, 8)], ids=str)
def test_the_kernel_errs_no_more_than_twice_the_loop(sizes, widths, error):
    """An empty group's gradient is zeros, not what the memory held."""
    generator = torch.Generator("cuda").manual_seed(0)
    d_in, d_out = widths
    shapes = ((sum(sizes), d_in), (len(sizes), d_out, d_in), (sum(sizes), d_out))
    drawn = [
        torch.randn(each, generator=generator, device="cuda", dtype=torch.bfloat16)
        for each in shapes
    ]
    ends = torch.tensor(sizes, device="cuda").cumsum(0).int()

    def outcome(function, dtype):
        x, weight = (each.to(dtype).requires_grad_() for each in drawn[:2])
        y = function(x, weight, ends)
        y.backward(drawn[2].to(dtype))
        return [y.detach(), x.grad, weight.grad]

    assert api.in_one_kernel(torch.bfloat16, (d_out, d_in), ends.device)
    oracle = outcome(reference.grouped_matmul, torch.float64)
    base = outcome(reference.grouped_matmul, torch.bfloat16)
    filled = torch.full((2**24,), float("nan"), device="cuda")
    del filled  # What is allocated next is not zeros by chance.
    found = outcome(api.grouped_matmul, torch.bfloat16)
    assert error(found, oracle) <= 2 * error(base, oracle) + 2.0**-9
    for gradient, size in zip(found[2], sizes, strict=True):
        assert size or not gradient.any()


@one_kernel
def test_the_host_waits_for_nothing():
    x = torch.randn(48, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(3, 32, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    ends = torch.tensor([16, 16, 48], device="cuda", dtype=torch.int32)
    api.grouped_matmul(x, weight, ends).sum().backward()  # What the first call sets up may wait.
    torch.cuda.set_sync_debug_mode("error")
    try:
        api.grouped_matmul(x, weight, ends).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("setting", ["fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16"])
@pytest.mark.parametrize("pass_", ["forward", "train_step"])
def test_a_step(setting, pass_, make_case, check):
    with prepare(make_case(shape=ALL_ACTIVE, precision=setting, pass_=pass_)) as step:
        check(step)


@pytest.mark.parametrize("mode", ["sqrt", "every-block", "selective"])
def test_checkpointing(mode, make_case, check):
    with prepare(make_case(shape=ALL_ACTIVE, precision="bf16", checkpointing=mode)) as step:
        check(step)


@one_kernel
@pytest.mark.parametrize("setting", ["bf16-mixed", "bf16"])
@pytest.mark.parametrize("compile_", ["none", "default"])
def test_a_captured_step(setting, compile_, make_case, check):
    case = make_case(
        shape=ALL_ACTIVE,
        precision=setting,
        attention="sdpa",
        compile=compile_,
        optimizer="adamw-triton",
        cuda_graphs=True,
    )
    with prepare(case) as step:
        check(step)


@one_kernel
@pytest.mark.parametrize("pass_", ["forward", "train_step"])
def test_replays_route_their_own_tokens(pass_, make_case, error):
    """Step after step on other batches, the graph gives what an uncaptured step gives; within what
    a token may differ that the other rounding of an earlier step sent elsewhere."""

    def outputs(**captured):
        with prepare(make_case(shape=EXPERTS, precision="bf16", pass_=pass_, **captured)) as step:
            found = []
            for _ in range(6):
                step.step()
                found.append(step.output.clone())
            return found

    for mine, theirs in zip(outputs(cuda_graphs=True), outputs(), strict=True):
        assert error([mine], [theirs]) <= 2.0**-8
