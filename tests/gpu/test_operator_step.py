"""Attention alone on a GPU: every implementation, forward, backward, and what is held in between."""

import pytest
import torch

from peakward.lab.levers.prepare import prepare
from peakward.records.case import OperatorCase

pytestmark = pytest.mark.gpu
BATCH, SEQ_LEN = 2, 256
HOPPER = {"flash-hopper"}
SIXTEEN_BITS = {"sdpa-cudnn", "sdpa-flash", "flash-hopper"}
IMPLEMENTATIONS = (
    "naive",
    "sdpa",
    "sdpa-cudnn",
    "sdpa-flash",
    "sdpa-efficient",
    "sdpa-math",
    "flex",
    "flash",
    "flash-hopper",
)
ROUNDING = 512
"""Of the caching allocator."""


def case(attention, precision="bf16", pass_="backward", head_dim=64, **options):
    sizes = {"batch_size": BATCH, "n_heads": 1, "seq_len": SEQ_LEN, "head_dim": head_dim}
    return OperatorCase(
        **sizes, attention=attention, precision=precision, pass_=pass_, device="cuda", **options
    )


def skip_where_it_cannot(attention, precision):
    if attention in HOPPER and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("not a GPU of compute capability 9")
    if attention in SIXTEEN_BITS and precision == "fp32":
        pytest.skip("16 bits alone")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attention", IMPLEMENTATIONS)
def test_backward_alone_gives_the_gradients_of_the_reference(attention, precision):
    skip_where_it_cannot(attention, precision)
    with prepare(case("naive", "fp32", "forward_backward")) as exact:
        exact.step()
    with prepare(case(attention, precision)) as step:
        step.step()
        step.step()
    # Inputs are rounded to bf16 too: as many roundoffs as the chain has results, and theirs.
    bound = 16 * (2.0**-8 if precision == "bf16" else 2.0**-11)
    for mine, other in zip(step._inputs, exact._inputs, strict=True):
        error = (mine.grad.float() - other.grad).norm() / other.grad.norm()
        assert error <= bound


@pytest.mark.parametrize("attention", ["sdpa-flash", "flash", "flash-hopper"])
def test_a_fused_kernel_holds_its_result_and_a_number_a_row(attention):
    skip_where_it_cannot(attention, "bf16")
    with prepare(case(attention)) as step:
        step.step()
        held = step.held_for_backward_bytes()
    result, rows = BATCH * SEQ_LEN * 64 * 2, BATCH * SEQ_LEN * 4
    # torch's own keeps its random seed and offset too, in a block each.
    assert result + rows <= held <= result + rows + 4 * ROUNDING


def test_naive_holds_the_weights_in_both_types():
    with prepare(case("naive")) as step:
        step.step()
        held = step.held_for_backward_bytes()
    weights, mask = BATCH * SEQ_LEN**2 * (4 + 2), SEQ_LEN**2
    result = BATCH * SEQ_LEN * 64 * 2
    assert weights + mask + result <= held <= weights + mask + result + 4 * ROUNDING


def test_a_compiled_graph_serves_more_than_once():
    with prepare(case("naive", compile="default")) as step:
        step.step()
        first = [each.grad.clone() for each in step._inputs]
        step.step()
    assert all(torch.equal(a.grad, b) for a, b in zip(step._inputs, first, strict=True))
