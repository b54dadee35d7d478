"""The cross-entropy kernels against the reference in fp64, and against torch's own in their type."""

import re
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st

from ahead_of_time import compiled, entries
from oracle import assert_as_close_as, assert_same_specials
from peakward.kernels.ops.cross_entropy import reference
from tiers import drawn_in_full, in_full

pytest.importorskip("triton")
from peakward.kernels.ops.cross_entropy import api, triton

PLAIN = {"ignore_index": -100, "label_smoothing": 0.0}
N_DRAWS = 3
"""Of one row's loss the error is one rounding more or less: draws are judged together."""


def drawn(n_tokens, vocab, dtype, *, n_ignored=0, padding=0):
    """Logits of a standard deviation of 3, rows `padding` apart, and targets."""
    wide = (torch.randn(n_tokens, vocab + padding) * 3).to(dtype)
    targets = torch.randint(0, vocab, (n_tokens,))
    targets[torch.randperm(n_tokens)[:n_ignored]] = -100
    return wide[:, :vocab], targets


def with_gradient(loss_of, logits, targets, **options):
    leaf = logits.detach().requires_grad_()
    loss = loss_of(leaf, targets, **options)
    return loss.detach(), torch.autograd.grad(loss, leaf, torch.full_like(loss, 0.5))[0]


def exact(logits, targets, **options):
    wide = logits.detach().double()
    loss, lse = reference.cross_entropy(wide, targets, **options)
    half = torch.full_like(loss, 0.5)
    return loss, reference.gradient(wide, targets, half, torch.zeros_like(lse), **options)


@drawn_in_full(7)
@given(
    n_tokens=st.sampled_from([1, 2, 5]),
    vocab=st.sampled_from([1, 5, 17, 127, 1000, 4096, 4099]),
    dtype_number=st.integers(0, 2),
    label_smoothing=st.sampled_from([0.0, 0.1]),
    padding=st.sampled_from([0, 0, 3, 8]),
    seed=st.integers(0, 99),
)
@example(n_tokens=5, vocab=1000, dtype_number=0, label_smoothing=0.1, padding=3, seed=0)
def test_is_as_close_to_fp64_as_torch_is(
    device, dtypes, n_tokens, vocab, dtype_number, label_smoothing, padding, seed
):
    torch.manual_seed(seed)
    dtype = dtypes[dtype_number % len(dtypes)]
    inputs = [
        drawn(n_tokens, vocab, dtype, n_ignored=n_tokens // 3, padding=padding)
        for _ in range(N_DRAWS)
    ]
    options = {"ignore_index": -100, "label_smoothing": label_smoothing}
    theirs = [with_gradient(F.cross_entropy, *each, **options) for each in inputs]
    mine = [with_gradient(api.cross_entropy, *each, **options) for each in inputs]
    expected = [exact(*each, **options) for each in inputs]
    for results in zip(
        *(zip(*each, strict=True) for each in (theirs, mine, expected)), strict=True
    ):
        assert_as_close_as(*map(torch.stack, results))


@pytest.mark.full
def test_compiled_for_a_gpu_rows_are_moved_by_whole_vectors_but_for_their_edges(tmp_path):
    compiled("cross_entropy", 90, ptx=tmp_path)
    for kernel, loads, stores, single_stores in (
        # Whole blocks, and the last under a mask; a row's loss, log-sum-exp, maximum and sum.
        ("forward", 4, 0, 4),
        # The edges.
        ("backward", 2, 2, 1),
        # A row's loss, its log-sum-exp, the edges.
        ("both", 6, 2, 3),
    ):
        text = entries(tmp_path, f"cross_entropy_{kernel}")[-1]
        words = Counter(re.findall(r"(?:ld|st)\.global[\w.:]*", text))
        assert words["ld.global.v4.b32"] == loads
        assert words["st.global.v4.b32"] == stores
        assert words["st.global.b32"] == single_stores


def test_settings_with_more_warps_give_the_same(device, dtypes):
    logits, targets = drawn(3, 9001, dtypes[0], n_ignored=1)
    expected = triton.forward(logits, targets, loss_dtype=torch.float32, **PLAIN)
    for cut in (triton.Settings(8192, 16), triton.Settings(1024, 1)):
        got = triton.forward(logits, targets, loss_dtype=torch.float32, settings=cut, **PLAIN)
        torch.testing.assert_close(got, expected, rtol=2**-21, atol=0)


def test_a_confident_row_keeps_its_small_loss(device, dtypes):
    # log Σ exp and the target's logit agree in all but the last bits: their difference would be noise.
    logits = torch.zeros(4, 100)
    logits[:, 7] = 12.0
    logits += 100.0
    targets = torch.full((4,), 7)
    expected, _ = exact(logits, targets, **PLAIN)
    theirs = F.cross_entropy(logits, targets)
    assert_as_close_as(theirs, api.cross_entropy(logits, targets), expected)


def test_the_log_sum_exp_and_a_gradient_through_it(device, dtypes):
    logits, targets = drawn(9, 1000, torch.float32, n_ignored=2)
    _, lse = reference.cross_entropy(logits.double(), targets, **PLAIN)
    leaf = logits.detach().requires_grad_()
    loss, got = api.cross_entropy_and_lse(leaf, targets)
    other = leaf.logsumexp(-1)
    assert_as_close_as(other.detach(), got.detach(), lse)
    weights = torch.randn(9)
    expected = reference.gradient(
        logits.double(), targets, torch.tensor(1.0), weights.double(), **PLAIN
    )
    (theirs,) = torch.autograd.grad(
        F.cross_entropy(leaf, targets) + (other * weights).sum(), leaf, retain_graph=True
    )
    (mine,) = torch.autograd.grad(loss + (got * weights).sum(), leaf, retain_graph=True)
    assert_as_close_as(theirs, mine, expected)
    (mine,) = torch.autograd.grad((got * weights).sum(), leaf)
    (theirs,) = torch.autograd.grad((leaf.logsumexp(-1) * weights).sum(), leaf)
    torch.testing.assert_close(mine, theirs)


def test_the_gradient_lies_over_the_logits(device, dtypes):
    for dtype in dtypes:
        logits, targets = drawn(9, 4099, dtype, n_ignored=2)
        _, expected = with_gradient(api.cross_entropy, logits, targets)
        leaf = logits.detach().clone().requires_grad_()
        loss = api.cross_entropy_over_logits(leaf, targets)
        (got,) = torch.autograd.grad(loss, leaf, torch.full_like(loss, 0.5), retain_graph=True)
        assert torch.equal(got, expected)
        assert got.data_ptr() == leaf.data_ptr()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(loss, leaf)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (api.cross_entropy, "no autograd formula"),
        (api.cross_entropy_over_logits, "expected create_graph=False"),
    ],
)
def test_a_second_derivative_is_refused(device, dtypes, call, words):
    logits, targets = drawn(3, 100, torch.float32)
    leaf = logits.requires_grad_()
    with pytest.raises(RuntimeError, match=words):
        (gradient,) = torch.autograd.grad(call(leaf * 1, targets), leaf, create_graph=True)
        torch.autograd.grad(gradient.square().sum(), leaf)


@pytest.mark.parametrize("vocab", [64, *in_full([9001])])
def test_losses_and_gradient_at_once_are_those_of_two_passes(device, dtypes, vocab):
    for dtype in dtypes:
        logits, targets = drawn(7, vocab, dtype, n_ignored=2)
        loss, lse, sums, count = triton.forward(logits, targets, loss_dtype=torch.float32, **PLAIN)
        expected = torch.empty_like(logits)
        triton.gradient(logits, targets, sums, count, count, expected, grad_lse=None, **PLAIN)
        losses, got_lse = torch.full((7,), torch.nan), torch.full((7,), torch.nan)
        triton.losses_and_gradient(logits, targets, losses, got_lse, **PLAIN)
        # Sums in another order; then a rounding may fall to the other side, of fp16 by 2**-24.
        rtol = torch.finfo(dtype).eps + 2**-21
        torch.testing.assert_close(logits, expected, rtol=rtol, atol=2**-24)
        torch.testing.assert_close(got_lse, lse, rtol=2**-21, atol=0)
        torch.testing.assert_close(losses.sum() / 5, loss, rtol=2**-21, atol=0)


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinities_propagate_as_torchs_do(device, dtypes, special):
    for place in (3, 200):
        logits, targets = drawn(4, 300, torch.float32)
        targets[:] = torch.tensor([3, 7, 200, 9])
        logits[1:3, place] = special
        theirs = with_gradient(F.cross_entropy, logits, targets)
        mine = with_gradient(api.cross_entropy, logits, targets)
        for other, got in zip(theirs, mine, strict=True):
            assert_same_specials(other, got)


def test_a_row_of_minus_infinity_and_a_vocabulary_of_masked_logits(device, dtypes):
    logits, targets = drawn(3, 9000, torch.float32)
    logits[0, 20:] = -torch.inf  # Whole vectors, whole blocks.
    logits[1] = -torch.inf
    targets[:] = torch.tensor([3, 4, 5])
    theirs = with_gradient(F.cross_entropy, logits, targets)
    mine = with_gradient(api.cross_entropy, logits, targets)
    for other, got in zip(theirs, mine, strict=True):
        assert_same_specials(other, got)
    torch.testing.assert_close(mine[1][[0, 2]], theirs[1][[0, 2]])


def test_ignored_rows_have_no_gradient_and_no_share(device, dtypes):
    logits, targets = drawn(4, 50, torch.float32)
    targets[targets == 13] = 14
    targets[1] = 13
    logits[1] = torch.nan
    loss, gradient = with_gradient(api.cross_entropy, logits, targets, ignore_index=13)
    kept = [0, 2, 3]
    torch.testing.assert_close(loss, F.cross_entropy(logits[kept], targets[kept]))
    assert not gradient[1].any()


def test_without_a_row_that_counts_the_mean_is_nan(device, dtypes):
    logits, _ = drawn(4, 50, torch.float32)
    assert api.cross_entropy(logits, torch.full((4,), -100)).isnan()
    empty, targets = logits[:0], torch.zeros(0, dtype=torch.int64)
    loss, gradient = with_gradient(api.cross_entropy, empty, targets)
    assert loss.isnan()
    assert gradient.shape == (0, 50)


@pytest.mark.parametrize("target", [50, -1])
def test_a_target_outside_the_vocabulary_is_nan(device, dtypes, target):
    logits, targets = drawn(4, 50, torch.float32)
    targets[2] = target
    loss, gradient = with_gradient(api.cross_entropy, logits, targets)
    assert loss.isnan()
    assert gradient.isnan().all(1).tolist() == [False, False, True, False]


def test_every_output_is_written(device, dtypes, monkeypatch):
    empty, empty_strided = torch.empty, torch.empty_strided
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan))
    monkeypatch.setattr(
        torch, "empty_strided", lambda *a, **k: empty_strided(*a, **k).fill_(torch.nan)
    )
    logits, targets = drawn(5, 4099, torch.float32, n_ignored=1)
    assert all(each.isfinite().all() for each in with_gradient(api.cross_entropy, logits, targets))


@pytest.mark.parametrize(("padding", "spans"), [(8, 4 * 58), (10_000, 4 * 50)])
def test_a_gradient_takes_no_room_for_what_lies_between_rows_far_apart(
    device, dtypes, padding, spans
):
    logits, targets = drawn(4, 50, torch.float32, padding=padding)
    _, gradient = with_gradient(api.cross_entropy, logits, targets)
    assert gradient.untyped_storage().nbytes() <= spans * 4
    torch.testing.assert_close(
        gradient.double(), exact(logits, targets, **PLAIN)[1], rtol=1e-5, atol=1e-6
    )


def test_the_same_bits_twice(device, dtypes):
    logits, targets = drawn(5, 5000, dtypes[-1])
    first, second = (with_gradient(api.cross_entropy, logits, targets) for _ in range(2))
    assert all(map(torch.equal, first, second))


@pytest.mark.full
def test_ops_are_what_they_register(device, dtypes):
    logits, targets = drawn(3, 100, torch.float32, n_ignored=1)
    leaf = logits.detach().clone().requires_grad_()
    torch.library.opcheck(api._forward.overload, (leaf, targets, -100, 0.1, torch.float32))
    _, _, sums, count = triton.forward(logits, targets, loss_dtype=torch.float32, **PLAIN)
    tensors = (logits, targets, sums, count, torch.ones(()), None)
    options = {"ignore_index": -100, "label_smoothing": 0.1}
    torch.library.opcheck(api._backward.overload, tensors, options)
    torch.library.opcheck(api._backward_over.overload, tensors, options)


@pytest.mark.parametrize("call", [api.cross_entropy, api.cross_entropy_over_logits])
def test_compiles_whole(device, dtypes, call):
    logits, targets = drawn(5, 300, torch.float32)
    eager = with_gradient(lambda x, y: call(x * 2, y), logits, targets)
    compiled = torch.compile(lambda x, y: call(x * 2, y), fullgraph=True, backend="aot_eager")
    for got, expected in zip(with_gradient(compiled, logits, targets), eager, strict=True):
        torch.testing.assert_close(got, expected)


def test_autocast_gives_the_loss_in_fp32(device, dtypes):
    logits, targets = drawn(3, 100, torch.float16)
    assert api.cross_entropy(logits, targets).dtype == torch.float16
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert api.cross_entropy(logits, targets).dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y: (x.double(), y), "float64"),
        (lambda x, y: (x[None], y), "tokens, vocab"),
        (lambda x, y: (x, y.int()), "int32"),
        (lambda x, y: (x, y[:2]), r"\(2,\)"),
        (lambda x, y: (x.T.contiguous().T, y), "strides"),
        (lambda x, y: (x[:1].expand(3, -1), y), "strides"),
        (lambda x, y: (x, y.to("meta")), "one device"),
    ],
)
def test_bad_inputs_are_refused(device, dtypes, change, words):
    logits, targets = drawn(3, 100, torch.float32)
    with pytest.raises(ValueError, match=rf"cross_entropy: expected .*{words}"):
        api.cross_entropy(*change(logits, targets))


def test_bad_options_are_refused(device, dtypes):
    logits, targets = drawn(3, 100, torch.float32)
    with pytest.raises(ValueError, match="reduction of 'mean', got 'sum'"):
        api.cross_entropy(logits, targets, reduction="sum")
    with pytest.raises(ValueError, match=r"label_smoothing within 0 and 1, got 1\.5"):
        api.cross_entropy(logits, targets, label_smoothing=1.5)
    with pytest.raises(ValueError, match=r"expected loss_dtype float32, .*, got torch\.int64"):
        api.cross_entropy_over_logits(logits, targets, loss_dtype=torch.int64)
