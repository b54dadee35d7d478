"""The linear cross-entropy against the reference in fp64, and against torch's own in its type."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from oracle import assert_as_close_as, assert_same_specials, error
from peakward.kernels.ops.linear_cross_entropy import reference
from tiers import drawn_in_full

pytest.importorskip("triton")
from peakward.kernels.ops.cross_entropy.triton import both, online
from peakward.kernels.ops.linear_cross_entropy import (
    api,
    chunked,
    operators,
    recomputed,
    triton,
    whole,
    workspace,
)
from peakward.kernels.ops.linear_cross_entropy.triton import partials, scaling, slopes

EACH = pytest.mark.parametrize("implementation", api.IMPLEMENTATIONS)
N_DRAWS = 3
"""Of one token's loss the error is one rounding more or less: draws are judged together."""


def drawn(n_tokens, width, vocab, dtype, *, n_ignored=0):
    hidden = torch.randn(n_tokens, width).to(dtype)
    weight = (torch.randn(vocab, width) * 2 / width**0.5).to(dtype)
    targets = torch.randint(0, vocab, (n_tokens,))
    targets[torch.randperm(n_tokens)[:n_ignored]] = -100
    return hidden, weight, targets


def plain(hidden, weight, targets):
    return F.cross_entropy(F.linear(hidden, weight), targets)


def ours(implementation, **options):
    def call(*tensors):
        return api.linear_cross_entropy(*tensors, implementation=implementation, **options)

    return call


def with_gradients(loss_of, hidden, weight, targets):
    leaves = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    loss = loss_of(*leaves, targets)
    return loss.detach(), *torch.autograd.grad(loss, leaves, torch.full_like(loss, 0.5))


def exact(hidden, weight, targets):
    wide = hidden.double(), weight.double(), targets
    loss = reference.linear_cross_entropy(*wide, ignore_index=-100)
    return loss, *reference.gradients(*wide, torch.full_like(loss, 0.5), ignore_index=-100)


@EACH
@drawn_in_full(5)
@given(
    n_tokens=st.sampled_from([1, 3, 9]),
    width=st.sampled_from([8, 24, 64]),
    vocab=st.sampled_from([1, 17, 127, 300]),
    dtype_number=st.integers(0, 2),
    seed=st.integers(0, 99),
)
@example(n_tokens=9, width=24, vocab=127, dtype_number=1, seed=0)
def test_is_as_close_to_fp64_as_torch_is(
    device, dtypes, implementation, n_tokens, width, vocab, dtype_number, seed
):
    torch.manual_seed(seed)
    dtype = dtypes[dtype_number % len(dtypes)]
    # What a row's sum errs by all of its gradient shares: of one row more draws.
    n_draws = 4 * N_DRAWS if n_tokens == 1 else N_DRAWS
    inputs = [drawn(n_tokens, width, vocab, dtype, n_ignored=n_tokens // 3) for _ in range(n_draws)]
    # One byte: as many chunks as there can be.
    mine = [with_gradients(ours(implementation, workspace_bytes=1), *each) for each in inputs]
    theirs = [with_gradients(plain, *each) for each in inputs]
    expected = [exact(*each) for each in inputs]
    for results in zip(
        *(zip(*each, strict=True) for each in (theirs, mine, expected)), strict=True
    ):
        assert_as_close_as(*map(torch.stack, results))


@EACH
def test_a_width_of_odd_bytes(device, dtypes, implementation):
    inputs = drawn(5, 17, 40, torch.float32)
    if implementation == "recomputed":
        with pytest.raises(ValueError, match="expected a width of whole 16 bytes, got 17 of"):
            ours(implementation)(*inputs)
        return
    results = (with_gradients(plain, *inputs), with_gradients(ours(implementation), *inputs))
    for theirs, mine, right in zip(*results, exact(*inputs), strict=True):
        assert_as_close_as(theirs, mine, right)


@EACH
def test_chunks_give_what_one_gives(device, dtypes, implementation, monkeypatch):
    monkeypatch.setattr(workspace, "STEP", 16)
    inputs = drawn(40, 16, 50, torch.float32, n_ignored=9)
    whole = with_gradients(ours(implementation), *inputs)
    cut = with_gradients(ours(implementation, workspace_bytes=1), *inputs)
    for got, expected in zip(cut, whole, strict=True):
        assert error(got, expected) <= 2**-20


@EACH
@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinities_propagate_as_torchs_do(device, dtypes, implementation, special):
    hidden, weight, targets = drawn(6, 16, 40, torch.float32)
    hidden[2, 3] = special
    theirs = with_gradients(plain, hidden, weight, targets)
    mine = with_gradients(ours(implementation), hidden, weight, targets)
    for other, got in zip(theirs, mine, strict=True):
        assert_same_specials(other, got)


@EACH
def test_rows_that_do_not_count(device, dtypes, implementation):
    hidden, weight, targets = drawn(6, 16, 40, torch.float32)
    targets[1] = 13
    loss = ours(implementation, ignore_index=13)
    mine = with_gradients(loss, hidden, weight, targets)
    kept = targets != 13
    theirs = with_gradients(plain, hidden[kept], weight, targets[kept])
    torch.testing.assert_close(mine[0], theirs[0])
    torch.testing.assert_close(mine[1][kept], theirs[1])
    torch.testing.assert_close(mine[2], theirs[2])
    assert not mine[1][~kept].any()
    assert loss(hidden, weight, torch.full((6,), 13)).isnan()


@EACH
@pytest.mark.parametrize("bound", [None, 1])
def test_without_a_row_that_counts_gradients_are_zeros_as_torchs(
    device, dtypes, implementation, bound
):
    hidden, weight, _ = drawn(6, 16, 40, torch.float32)
    inputs = (hidden, weight, torch.full((6,), -100))
    mine = with_gradients(ours(implementation, workspace_bytes=bound), *inputs)
    for got, expected in zip(mine, with_gradients(plain, *inputs), strict=True):
        assert torch.equal(got.nan_to_num(7), expected.nan_to_num(7))


@EACH
def test_no_tokens(device, dtypes, implementation):
    hidden, weight, targets = drawn(0, 16, 40, torch.float32)
    loss, d_hidden, d_weight = with_gradients(ours(implementation), hidden, weight, targets)
    assert loss.isnan()
    assert d_hidden.shape == (0, 16)
    assert d_weight.shape == weight.shape


@EACH
@pytest.mark.parametrize("bound", [None, 1])
def test_an_ignored_row_of_infinities_has_no_gradient(device, dtypes, implementation, bound):
    """Nor by what lies past the last of 41 words, which products take with zeros."""
    hidden, weight, targets = drawn(6, 16, 41, torch.float32)
    hidden[2], targets[2] = torch.inf, -100
    loss = ours(implementation, workspace_bytes=bound)
    _, d_hidden, _ = with_gradients(loss, hidden, weight, targets)
    assert not d_hidden[2].any()
    assert d_hidden.isfinite().all()


@EACH
@pytest.mark.parametrize("bound", [None, 1])
def test_a_graph_that_is_kept_gives_its_gradients_again(device, dtypes, implementation, bound):
    hidden, weight, targets = drawn(6, 16, 40, torch.float32)
    leaves = hidden.requires_grad_(), weight.requires_grad_()
    loss = ours(implementation, workspace_bytes=bound)(*leaves, targets)
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(loss, leaves)))


@EACH
def test_a_loss_scale_that_hidden_itself_cannot_take(device, dtypes, implementation):
    """Of two words as likely as each other half of what is infinite in fp16."""
    hidden = torch.full((1, 16), 16.0, dtype=torch.float16, requires_grad=True)
    weight = torch.zeros(2, 16, dtype=torch.float16, requires_grad=True)
    loss = ours(implementation, loss_dtype=torch.float32)(hidden, weight, torch.zeros(1).long())
    (d_weight,) = torch.autograd.grad(loss, weight, torch.tensor(6144.0))
    assert (hidden * 6144).isinf().all()
    assert d_weight.tolist() == [[-49152.0] * 16, [49152.0] * 16]


@EACH
@pytest.mark.parametrize("target", [40, -1])
def test_a_target_outside_the_vocabulary_is_nan(device, dtypes, implementation, target):
    hidden, weight, targets = drawn(4, 16, 40, torch.float32)
    targets[2] = target
    loss, d_hidden, _ = with_gradients(ours(implementation), hidden, weight, targets)
    assert loss.isnan()
    assert d_hidden.isnan().all(1).tolist() == [False, False, True, False]


@EACH
def test_every_output_is_written_and_the_same_twice(device, dtypes, implementation, monkeypatch):
    monkeypatch.setattr(workspace, "STEP", 16)
    inputs = drawn(40, 16, 50, dtypes[-1], n_ignored=5)
    call = ours(implementation, workspace_bytes=1)
    # Fills what is empty with NaN; cuBLAS would ask for a setting of its own.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        first, second = (with_gradients(call, *inputs) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(each.isfinite().all() for each in first)
    assert all(map(torch.equal, first, second))


@EACH
def test_only_the_gradients_that_are_wanted(device, dtypes, implementation):
    hidden, weight, targets = drawn(5, 16, 40, torch.float32)
    call = ours(implementation)
    whole = with_gradients(call, hidden, weight, targets)
    for number, leaf in ((1, hidden), (2, weight)):
        leaf.requires_grad_()
        loss = call(hidden, weight, targets)
        (got,) = torch.autograd.grad(loss, leaf)
        torch.testing.assert_close(got, whole[number] * 2)
        leaf.requires_grad_(False)
    torch.testing.assert_close(call(hidden, weight, targets), whole[0])


def test_a_view_that_no_descriptor_can_be_of(device, dtypes):
    hidden, weight, targets = drawn(5, 16, 40, torch.float32)
    shifted = torch.cat([torch.zeros(1), weight.flatten()])[1:].view(40, 16)
    with pytest.raises(ValueError, match=r"expected weight at a multiple of 16 bytes in memory"):
        ours("recomputed")(hidden, shifted, targets)
    expected = ours("chunked")(hidden, weight, targets)
    torch.testing.assert_close(ours("chunked")(hidden, shifted, targets), expected)


def test_tiles_by_pointers_or_taken_in_turn_are_those_by_descriptors(device, dtypes):
    hidden, weight, targets = drawn(70, 24, 150, torch.float32, n_ignored=3)
    one = torch.ones(())
    results = []
    for described, resident in ((True, False), (False, False), (True, True)):
        cut = triton.Settings(
            32, 64, 16, 2, num_warps=4, num_stages=2, described=described, resident=resident
        )
        each, sums = triton.losses(hidden, weight, targets, ignore_index=-100, settings=cut)
        out = torch.full((70, 80), torch.nan)
        triton.gradient(
            hidden, weight, targets, sums, one, one, out[:, :70],
            first_column=80, ignore_index=-100, settings=cut,
        )  # fmt: skip
        results.append((each, sums, out))
    for by_descriptors, by_pointers, in_turn in zip(*results, strict=True):
        assert torch.equal(by_descriptors[..., :70], by_pointers[..., :70])
        assert torch.equal(by_descriptors[..., :70], in_turn[..., :70])
    assert results[1][2][:, 70:].isnan().all()


class Allocated(TorchDispatchMode):
    """The most bytes that tensors made within hold at once, and the most that one of them does."""

    def __init__(self):
        super().__init__()
        self.peak_bytes = self.largest_bytes = 0
        self._alive = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor) and not func.is_view:
                storage = each.untyped_storage()
                self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
                self.largest_bytes = max(self.largest_bytes, storage.nbytes())
        self._alive = {k: v for k, v in self._alive.items() if not v[0].expired()}
        self.peak_bytes = max(self.peak_bytes, sum(n for _, n in self._alive.values()))
        return result


class Unstarted:
    """In place of a kernel: the interpreter would copy tensors, which counts nobody's memory here."""

    def __getitem__(self, grid):
        return lambda *arguments, **options: None


@pytest.fixture
def unstarted(monkeypatch):
    for module, names in (
        (
            partials,
            ("_linear_cross_entropy_partials", "_linear_cross_entropy_combine"),
        ),
        (slopes, ("_linear_cross_entropy_gradient",)),
        (scaling, ("_linear_cross_entropy_scale",)),
        (both, ("cross_entropy_both",)),
        (online, ("cross_entropy_mean",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, Unstarted())


N_TOKENS, WIDTH, VOCAB = 3 * 128, 16, 800
LOGITS_BYTES = N_TOKENS * VOCAB * 4
GRADIENTS_BYTES = (N_TOKENS + VOCAB) * WIDTH * 4
ROWS_BYTES = N_TOKENS * 16 + 128 * 8 + 64
"""Beside gradients, of every token four numbers, of every token of a chunk two."""


def test_chunks_of_tokens_stay_within_their_workspace(device, dtypes, unstarted):
    inputs = drawn(N_TOKENS, WIDTH, VOCAB, torch.float32)
    bound = LOGITS_BYTES // 3
    with Allocated() as allocated:
        chunked.loss_and_gradients(
            *inputs, ignore_index=-100, loss_dtype=torch.float32,
            n_bytes=bound, of_hidden=True, of_weight=True,
        )  # fmt: skip
    assert allocated.largest_bytes == bound
    assert GRADIENTS_BYTES + bound <= allocated.peak_bytes <= GRADIENTS_BYTES + bound + ROWS_BYTES


def test_all_logits_at_once_leave_no_gradient_of_the_weight_in_fp32(device, dtypes, unstarted):
    hidden, weight, targets = drawn(N_TOKENS, WIDTH, VOCAB, torch.float32)
    with Allocated() as allocated:
        _, count, d_hidden, slope = whole.loss_and_slope(
            hidden, weight, targets, ignore_index=-100, loss_dtype=torch.float32,
            of_hidden=True, of_weight=True,
        )  # fmt: skip
        assert allocated.largest_bytes == LOGITS_BYTES
        of_hidden_bytes = N_TOKENS * WIDTH * 4
        assert allocated.peak_bytes <= LOGITS_BYTES + of_hidden_bytes + ROWS_BYTES
        whole.gradients(hidden, d_hidden, slope, count, torch.ones(()), vocab=VOCAB, of_weight=True)
    beside_bytes = 2 * of_hidden_bytes + VOCAB * WIDTH * 4
    assert allocated.peak_bytes <= LOGITS_BYTES + beside_bytes + ROWS_BYTES


def test_recomputing_keeps_no_logits(device, dtypes, unstarted):
    inputs = drawn(N_TOKENS, WIDTH, VOCAB, torch.float32)
    options = {"ignore_index": -100}
    with Allocated() as allocated:
        _, sums, count = recomputed.loss(*inputs, loss_dtype=torch.float32, **options)
    # Eight bytes for all logits of a row within a tile.
    tile = triton.settings_for(torch.float32, 90).block_vocab
    partials = N_TOKENS * -(-VOCAB // tile) * 8
    assert allocated.largest_bytes == partials < LOGITS_BYTES / 16
    assert allocated.peak_bytes <= partials + ROWS_BYTES
    bound = 128 * N_TOKENS * 4
    with Allocated() as allocated:
        recomputed.gradients(
            *inputs, sums, count, torch.ones(()),
            n_bytes=bound, of_hidden=True, of_weight=True, **options,
        )  # fmt: skip
    in_fp32 = N_TOKENS * WIDTH * 4
    assert allocated.largest_bytes == bound < LOGITS_BYTES / 4
    assert allocated.peak_bytes <= GRADIENTS_BYTES + in_fp32 + bound


def test_a_workspace_is_cut_evenly_and_never_beyond_its_bound():
    assert workspace.chunk_length(8192, 1000, 1 << 40) == 8192
    assert (
        workspace.chunk_length(8192, 1000, 3000 * 1000) == 2816
    )  # Of 23 tiles at most, three chunks.
    assert workspace.chunk_length(8192, 1000, 1) == 128
    assert workspace.chunk_length(17, 1000, 1) == 17
    assert workspace.chunk_length(200, 1000, 200 * 1000) == 200
    assert workspace.chunk_length(0, 1000, 1) == 0
    weight = torch.empty(128_256, 4096, dtype=torch.bfloat16, device="meta")
    assert workspace.workspace_bytes(weight) == 2 * 128_256 * 4096
    assert workspace.workspace_bytes(weight[:10]) == 256 << 20


def test_a_chunk_has_enough_tokens_and_all_logits_may_take_what_d_weight_in_fp32_would():
    weight = torch.empty(50_257, 768, dtype=torch.bfloat16, device="meta")
    assert workspace.workspace_bytes(weight) == 256 << 20
    assert workspace.tokens_bytes(weight) == 4096 * 50_272 * 2
    assert workspace.chunk_length(8192, 50_272 * 2, workspace.tokens_bytes(weight)) == 4096
    assert workspace.whole_bytes(weight) == (4096 * 50_272 + 768 * 50_257) * 2
    assert workspace.whole_bytes(weight.float()) == workspace.tokens_bytes(weight)
    wide = torch.empty(50_257, 8192, dtype=torch.bfloat16, device="meta")
    assert workspace.tokens_bytes(wide) == 8192 * 50_257 * 2


@pytest.mark.full
def test_ops_are_what_they_register(device, dtypes):
    hidden, weight, targets = drawn(3, 16, 40, torch.float32, n_ignored=1)
    leaves = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    options = (-100, torch.float32, 1 << 20)
    torch.library.opcheck(operators.chunked.overload, (*leaves, targets, *options, True, True))
    torch.library.opcheck(operators.whole.overload, (*leaves, targets, *options[:2], True, True))
    torch.library.opcheck(operators.recomputed.overload, (*leaves, targets, *options))
    one = torch.ones(())
    torch.library.opcheck(operators.chunked_backward.overload, (hidden, weight, one, one))
    slope = torch.randn(3, 48)
    torch.library.opcheck(
        operators.whole_backward.overload, (hidden, hidden, slope, one, one, 40, True)
    )
    _, sums, count = recomputed.loss(
        hidden, weight, targets, ignore_index=-100, loss_dtype=torch.float32
    )
    torch.library.opcheck(
        operators.recomputed_backward.overload,
        (hidden, weight, targets, sums, count, one, -100, 1 << 20, True, True),
    )


@EACH
def test_compiles_whole(device, dtypes, implementation):
    inputs = drawn(5, 16, 40, torch.float32)

    def call(hidden, weight, targets):
        return ours(implementation)(hidden * 2, weight, targets)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for got, expected in zip(
        with_gradients(compiled, *inputs), with_gradients(call, *inputs), strict=True
    ):
        torch.testing.assert_close(got, expected)


@EACH
def test_on_the_meta_device_there_are_shapes(device, dtypes, implementation):
    inputs = (each.to("meta") for each in drawn(6, 16, 40, torch.float16))
    loss = ours(implementation)(*inputs)
    assert (loss.shape, loss.dtype, loss.device.type) == ((), torch.float16, "meta")


@EACH
def test_a_loss_of_another_type_is_refused(device, dtypes, implementation):
    for dtype in (torch.int64, torch.float64):
        with pytest.raises(ValueError, match=rf"expected loss_dtype float32, .*, got {dtype}"):
            ours(implementation, loss_dtype=dtype)(*drawn(6, 16, 40, torch.float32))


@EACH
def test_autocast_casts_and_gives_the_loss_in_fp32(device, dtypes, implementation):
    hidden, weight, targets = drawn(5, 16, 40, torch.float32)
    with torch.autocast(device.type, dtype=dtypes[-1]):
        loss = ours(implementation)(hidden, weight, targets)
    assert loss.dtype == torch.float32
    cast = ours(implementation)(hidden.to(dtypes[-1]), weight.to(dtypes[-1]), targets)
    assert cast == loss.to(dtypes[-1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h, w, t: (h.double(), w.double(), t), "float64"),
        (lambda h, w, t: (h, w.half(), t), "one type"),
        (lambda h, w, t: (h[None], w, t), "vocab, d"),
        (lambda h, w, t: (h, w[:, :8], t), "vocab, d"),
        (lambda h, w, t: (h, w[:0], t), "not empty"),
        (lambda h, w, t: (h, w, t.int()), "int32"),
        (lambda h, w, t: (h, w, t[:2]), r"\(2,\)"),
        (lambda h, w, t: (h.T.contiguous().T, w, t), "contiguous hidden"),
        (lambda h, w, t: (h, w.T.contiguous().T, t), "contiguous weight"),
        (lambda h, w, t: (h, w, t.to("meta")), "one device"),
    ],
)
def test_bad_inputs_are_refused(device, dtypes, change, words):
    inputs = change(*drawn(5, 16, 40, torch.float32))
    with pytest.raises(ValueError, match=rf"linear_cross_entropy: expected .*{words}"):
        ours("chunked")(*inputs)


def test_an_implementation_that_there_is_not(device, dtypes):
    with pytest.raises(ValueError, match="'chunked' or 'recomputed', got 'fused'"):
        ours("fused")(*drawn(5, 16, 40, torch.float32))
