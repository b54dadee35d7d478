"""The attention kernels of Hopper against attention in fp64. No interpreter runs Gluon."""

import math

import pytest
import torch

from flash_cases import Case, Results, draw, exact, torchs
from oracle import assert_as_close_as, error
from peakward.kernels.ops.flash_attention.api import flash_attention, flash_attention_with_lse

pytest.importorskip("triton")
from peakward.kernels.ops.flash_attention.hopper import backward, forward
from peakward.kernels.ops.flash_attention.hopper.settings import HALVES, THREE, WHOLE

DTYPES = (torch.bfloat16, torch.float16)
CASES = [
    Case(q_len=1, k_len=1, head_dim=64),
    Case(n_heads=2, n_kv_heads=2, q_len=127, k_len=127, head_dim=128),
    Case(n_batches=2, n_heads=4, n_kv_heads=2, q_len=1000, k_len=1000, head_dim=64),
    Case(n_batches=2, n_heads=4, n_kv_heads=1, q_len=1000, k_len=1000, head_dim=128),
    Case(n_heads=3, q_len=333, k_len=700, head_dim=64),
    Case(n_heads=3, q_len=700, k_len=333, head_dim=128),
    Case(n_heads=2, n_kv_heads=2, q_len=700, k_len=333, head_dim=64, causal=False),
    Case(n_batches=2, n_heads=2, n_kv_heads=2, q_len=17, k_len=2000, head_dim=128, causal=False),
    Case(n_batches=2, n_heads=4, n_kv_heads=2, q_len=1000, k_len=1000, head_dim=80),
    Case(n_heads=3, q_len=333, k_len=700, head_dim=96),
    Case(n_heads=2, n_kv_heads=2, q_len=700, k_len=333, head_dim=80, causal=False),
    # More tiles than there are programs: each takes several.
    Case(n_batches=8, n_heads=4, n_kv_heads=1, q_len=1100, k_len=1100, head_dim=96),
    Case(n_batches=8, n_heads=4, n_kv_heads=2, q_len=1100, k_len=1100, head_dim=64),
    Case(n_batches=8, n_heads=4, n_kv_heads=4, q_len=1100, k_len=1100, head_dim=128),
    # Long enough for three warpgroups.
    Case(n_batches=5, n_heads=4, n_kv_heads=4, q_len=1400, k_len=8300, head_dim=64),
    Case(n_heads=2, n_kv_heads=2, q_len=2200, k_len=4200, head_dim=64, causal=False),
]


@pytest.fixture
def hopper(device):
    if device.type != "cuda" or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a GPU of compute capability 9")


def differentiated(drawn, case):
    """What comes of both results' gradients, by autograd."""
    inputs = [each.detach().requires_grad_() for each in drawn[:3]]
    out, lse = flash_attention_with_lse(
        *inputs, causal=case.causal, scale=case.rule.scale, implementation="hopper"
    )
    return Results(out.detach(), *torch.autograd.grad(out, inputs, drawn.dout)), lse.detach()


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_is_as_close_to_fp64_as_torch_is(hopper, dtype, case):
    drawn = draw(case, dtype)
    got, lse = differentiated(drawn, case)
    expected, exact_lse = exact(drawn, case)
    for theirs, mine, oracle in zip(torchs(drawn, case), got, expected, strict=True):
        assert_as_close_as(theirs, mine, oracle)
    seen = exact_lse > -math.inf
    assert torch.equal(seen, lse > -math.inf)
    # The scores are exact products of 16-bit values, summed and raised to a power in fp32.
    assert error(lse[seen], exact_lse[seen]) < 1e-5
    assert not got.out[~seen].any()


# Head dimensions in two pieces, by what is likeliest to show what is wrong: one tile of keys and one of
# queries; a mask; rings that turn; tiles cut off; sections of heads. By two pairs of heads and keys' heads,
# for each of which the kernels are compiled anew.
IN_PIECES = [
    Case(n_heads=2, n_kv_heads=2, q_len=128, k_len=128, causal=False),
    Case(n_heads=2, n_kv_heads=2, q_len=128, k_len=128),
    Case(n_heads=2, n_kv_heads=2, q_len=1, k_len=1),
    Case(n_heads=2, n_kv_heads=2, q_len=65, k_len=65),
    Case(n_heads=2, n_kv_heads=2, q_len=512, k_len=512),
    Case(n_heads=4, n_kv_heads=2, q_len=333, k_len=700),
    Case(n_heads=4, n_kv_heads=2, q_len=700, k_len=333),
    Case(n_heads=2, n_kv_heads=2, q_len=700, k_len=333, causal=False),
    Case(n_heads=2, n_kv_heads=2, q_len=17, k_len=2000, causal=False),
    Case(n_batches=2, n_heads=4, n_kv_heads=2, q_len=1000, k_len=1000, causal=False),
    Case(n_batches=8, n_heads=4, n_kv_heads=2, q_len=1100, k_len=1100),
]


def gradients(drawn, case, settings=None, *, dlse=None):
    """By the kernels themselves, whoever differentiates for the operators."""
    inputs = drawn[:3]
    out, lse = forward(*inputs, None, case.rule)
    return Results(
        out,
        *backward(drawn.dout, dlse, *inputs, out, lse, None, case.rule, settings=settings),
    )


@pytest.mark.parametrize("case", IN_PIECES, ids=str)
@pytest.mark.parametrize("head_dim", [80, 96])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_head_dims_in_pieces(hopper, dtype, head_dim, case):
    case = case._replace(head_dim=head_dim)
    drawn = draw(case, dtype)
    got, (expected, _) = gradients(drawn, case), exact(drawn, case)
    for theirs, mine, oracle in zip(torchs(drawn, case), got, expected, strict=True):
        assert_as_close_as(theirs, mine, oracle)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
@pytest.mark.parametrize("causal", [True, False])
def test_gradients_of_the_log_sum_exp(hopper, causal, head_dim):
    """Which torch has none of: within twice what torch errs by without them, in roundings of one kind."""
    case = Case(n_heads=4, n_kv_heads=2, q_len=300, k_len=333, head_dim=head_dim, causal=causal)
    drawn = draw(case, torch.bfloat16)
    got = gradients(drawn, case, dlse=drawn.dlse)
    (without, _), (expected, _) = exact(drawn, case), exact(drawn, case, with_dlse=True)
    roundoff = torch.finfo(torch.bfloat16).eps / 2
    for theirs, mine, plain, oracle in zip(
        torchs(drawn, case), got, without, expected, strict=True
    ):
        assert error(mine, oracle) <= 2 * max(error(theirs, plain), roundoff)
    assert error(without.dk, expected.dk) > 0.03


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
def test_gradients_of_keys_and_values_are_bitwise_repeatable(hopper, head_dim):
    """Those of queries are sums in the order in which tiles of keys come to an end."""
    case = Case(n_batches=8, n_heads=4, n_kv_heads=2, q_len=1100, k_len=1100, head_dim=head_dim)
    drawn = draw(case, torch.bfloat16)
    first, second = gradients(drawn, case), gradients(drawn, case)
    assert torch.equal(first.dk, second.dk)
    assert torch.equal(first.dv, second.dv)
    assert error(first.dq, second.dq.double()) < torch.finfo(torch.bfloat16).eps


BACKWARD = {
    "80 whole": (80, HALVES._replace(at_once=128)),
    "64 halves": (64, WHOLE._replace(at_once=64)),
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", BACKWARD)
def test_backward_settings_that_may_yet_be_chosen(hopper, name, causal):
    head_dim, settings = BACKWARD[name]
    case = Case(
        n_batches=8,
        n_heads=4,
        n_kv_heads=2,
        q_len=1100,
        k_len=1100,
        head_dim=head_dim,
        causal=causal,
    )
    drawn = draw(case, torch.bfloat16)
    got, (expected, _) = gradients(drawn, case, settings), exact(drawn, case)
    for theirs, mine, oracle in zip(torchs(drawn, case), got, expected, strict=True):
        assert_as_close_as(theirs, mine, oracle)


FORWARD = {
    "three queries 2": THREE._replace(q_stages=2),
    "three queries 2 stages 4": THREE._replace(q_stages=2, stages=4),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward_settings_that_may_yet_be_chosen(hopper, name):
    case = Case(n_batches=8, n_heads=4, n_kv_heads=2, q_len=1100, k_len=1100, head_dim=64)
    drawn = draw(case, torch.bfloat16)
    out, _ = forward(*drawn[:3], None, case.rule, settings=FORWARD[name])
    assert_as_close_as(torchs(drawn, case).out, out, exact(drawn, case)[0].out)


def test_the_forward_pass_is_bitwise_repeatable(hopper):
    drawn = draw(CASES[2], torch.bfloat16)
    first, second = (differentiated(drawn, CASES[2])[0].out for _ in range(2))
    assert torch.equal(first, second)


def test_a_wrong_value_reaches_every_row_that_sees_it_and_no_other_column_or_head(hopper):
    """And rows before it in its block, by a weight of 0: as `0 · NaN` does in torch."""
    q, k, v = (torch.randn(1, 2, 300, 64, dtype=torch.bfloat16) for _ in range(3))
    v[0, 1, 200, 3] = math.nan
    out = flash_attention(q, k, v, causal=True, implementation="hopper")
    assert out[0, 1, 200:, 3].isnan().all()
    out[0, 1, :, 3] = 0.0
    assert not out.isnan().any()


def test_torch_compile_takes_it_whole(hopper):
    q, k, v = (
        torch.randn(1, 2, 256, 128, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )

    def attention(q, k, v):
        return flash_attention(q, k, v, causal=True, implementation="hopper")

    compiled = torch.compile(attention, fullgraph=True)(q, k, v)
    assert torch.equal(compiled, attention(q, k, v))
    compiled.sum().backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in (q, k, v))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_cuda_graph_replays_it(hopper, head_dim):
    """Kernels that are launched while the one before them ends, as the nodes of a graph."""
    case = Case(n_batches=8, n_heads=4, n_kv_heads=4, q_len=1100, k_len=1100, head_dim=head_dim)
    drawn = draw(case, torch.bfloat16)
    (expected, expected_lse) = differentiated(drawn, case)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got, lse = differentiated(drawn, case)
    for _ in range(3):
        for each in (*got, lse):
            each.fill_(math.nan)
        graph.replay()
        assert torch.equal(got.out, expected.out)
        assert torch.equal(lse, expected_lse)
        # dq is summed in no fixed order.
        assert error(got.dq, expected.dq) < 1e-3
        assert torch.equal(got.dk, expected.dk)
        assert torch.equal(got.dv, expected.dv)


def test_without_keys_or_queries_there_is_nothing(hopper):
    q = torch.randn(1, 2, 5, 64, dtype=torch.bfloat16)
    out, lse = flash_attention_with_lse(
        q, q[:, :, :0], q[:, :, :0], causal=False, implementation="hopper"
    )
    assert not out.any()
    assert (lse == -math.inf).all()
    assert flash_attention(q[:0], q[:0], q[:0], causal=True, implementation="hopper").shape[0] == 0


REFUSED = {
    "float16 or bfloat16": {"dtype": torch.float32},
    r"head_dim of \(64, 80, 96, 128\)": {"head_dim": 72},
    "no window": {"window": 3},
}


@pytest.mark.parametrize("expected", REFUSED)
def test_refuses_what_it_has_no_kernel_for(device, expected):
    told = {"dtype": torch.float16, "head_dim": 64, "window": None, **REFUSED[expected]}
    q = torch.randn(1, 1, 8, told["head_dim"], dtype=told["dtype"])
    with pytest.raises(ValueError, match=f"expected {expected} for the implementation 'hopper'"):
        flash_attention(q, q, q, causal=True, window=told["window"], implementation="hopper")


def test_refuses_the_interpreter(device):
    if device.type == "cuda":
        pytest.skip("a GPU")
    q = torch.randn(1, 1, 8, 64, dtype=torch.float16)
    with pytest.raises(ValueError, match="expected a GPU for the implementation 'hopper'"):
        flash_attention(q, q, q, causal=True, implementation="hopper")


def test_refuses_strides_that_the_copy_engine_cannot_follow(hopper):
    q = torch.randn(1, 1, 9, 65, dtype=torch.float16)[..., :64]
    with pytest.raises(ValueError, match="expected q at multiples of 16 bytes"):
        flash_attention(q, q, q, causal=True, implementation="hopper")
