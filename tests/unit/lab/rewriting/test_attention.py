"""Attention replaced inside modules that nobody prepared, held to the modules as they were written."""

import copy
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from peakward.lab.rewriting import rewriting
from peakward.records.errors import PeakwardError
from tiers import in_full

from . import subjects
from .made import assert_close, assert_same, ids, replaced, step
from .subjects import DIM, LONGEST, Gpt

CAUSAL = [
    "Filled",
    "InPlace",
    "Chosen",
    "Biased",
    "Typed",
    "Summed",
    "Flat",
    "Repeated",
    "Learned",
    "Apart",
    "Called",
]
OTHERS = {
    "Padded": "causal attention",
    "Windowed": "windowed attention",
    "Sloped": "masked attention",
    "Asked": "causal attention",
    "Torchs": "attention of nn.MultiheadAttention",
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.float64, *in_full([torch.float32])])
@pytest.mark.parametrize("kind", [*CAUSAL, *OTHERS])
def test_loss_and_gradients_at_two_lengths_and_back(kind, dtype):
    model = Gpt(getattr(subjects, kind)).to(dtype)
    plain, keys = copy.deepcopy(model), list(model.state_dict())
    x = ids()
    before = step(model, x, x)
    undo, what = replaced(model, x, x)
    assert what == {OTHERS.get(kind, "causal attention")}
    assert_close(step(model, x, x), before, dtype)
    short = ids(3, 7)
    assert_close(step(model, short, short), step(plain, short, short), dtype)
    undo()
    assert_same(step(model, x, x), before)
    assert list(model.state_dict()) == keys
    assert vars(model).keys() == vars(plain).keys()


def test_scores_are_never_made():
    """No softmax is left in the forward pass."""
    model = Gpt(subjects.Filled).eval()
    x = ids()
    replaced(model, x, x)
    with torch.profiler.profile() as seen:
        model(x)
    names = {each.key for each in seen.key_averages()}
    assert "aten::softmax" not in names
    assert "aten::scaled_dot_product_attention" in names


def test_a_mask_of_the_batch_is_passed_on():
    model = Gpt(subjects.Padded).double()
    plain = copy.deepcopy(model)
    x, mask = ids(), torch.zeros(2, 12, dtype=torch.bool)
    mask[1, 8:] = True
    _, what = replaced(model, x, x, mask)
    assert what == {"masked attention"}
    for shift in (0, 1):
        moved = mask.roll(-shift, 1)
        assert_close(step(model, x, x, moved), step(plain, x, x, moved), torch.float64)


def test_rows_that_a_number_hides_are_left_alone():
    """torch's kernels give them another gradient."""

    class Numbers(subjects.Written):
        def attend(self, q, k, v, t, mask):
            att = q @ k.transpose(-2, -1) / self.d**0.5
            return att.masked_fill(mask[:, None, None, :], -1e9).softmax(dim=-1) @ v

    x, mask = ids(), torch.zeros(2, 12, dtype=torch.bool)
    with pytest.raises(PeakwardError, match="hide all keys of a query by a number"):
        replaced(Gpt(Numbers), x, x, mask)


@pytest.mark.parametrize("returns", [True, False])
def test_returned_probabilities_refuse_it(returns):
    model = subjects.Weighing(returns=returns).double()
    plain, x = copy.deepcopy(model), torch.randn(2, 9, DIM, dtype=torch.float64)
    _, what = replaced(model, x)
    assert what == {"causal attention"}
    for found, expected in zip(model(x), plain(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    reasons = [getattr(each, "reason", "") for each in rewriting.of(model).outcomes["attention"]]
    assert any("returned" in each for each in reasons) == returns


class Weighed(subjects.Torchs):
    """torch's module, whose probabilities are read."""

    def forward(self, x, mask=None):
        return self.inner(x, x, x)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU()), "got Sequential without"),
        (nn.Sequential(subjects.Capped()), "tanh"),
        (nn.Sequential(subjects.Both()), "returned"),
        (nn.Sequential(subjects.Reshaped()), "go through view"),
        (nn.Sequential(subjects.Sunk()), "go through cat"),
        (nn.Sequential(Weighed()), "nn.MultiheadAttention's probabilities are read"),
    ],
    ids=["none", "bent", "returned", "reshaped", "sunk", "weighed"],
)
def test_a_module_without_such_a_part_is_left_as_it_was(model, why):
    x = torch.randn(2, 9, DIM)
    before = model(x)
    with pytest.raises(PeakwardError, match=why):
        replaced(model, x)
    assert rewriting.of(model) is None
    found = model(x)
    pairs = zip(found, before, strict=True) if isinstance(before, tuple) else [(found, before)]
    assert all(torch.equal(one, two) for one, two in pairs)


def test_a_module_that_calls_sdpa_has_nothing_to_replace():
    class Calls(subjects.Written):
        def attend(self, q, k, v, t, mask):
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    x = torch.randn(2, 9, DIM)
    with pytest.raises(PeakwardError, match="already"):
        replaced(Calls(), x)
    model = Calls()
    expected = model(x)
    replaced(model, x, by="sdpa-math")
    torch.testing.assert_close(model(x), expected)


def test_a_mask_that_changes_is_seen_and_told_once():
    """The graph was made for a causal mask; one that is not takes the module's own way."""
    model = Gpt(subjects.Filled).double()
    x = ids()
    replaced(model, x, x)
    step(model, x, x)
    with torch.no_grad():
        model.blocks[0].attention.tril[..., 3, 5] = 1
    plain = Gpt(subjects.Filled).double()
    plain.load_state_dict(model.state_dict())
    with pytest.warns(UserWarning, match="mask is causal"):
        found = step(model, x, x)
    assert_close(found, step(plain, x, x), torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        step(model, x, x)


def test_dropout_is_exact_at_0_and_alike_in_the_mean():
    model = Gpt(subjects.Filled, p=0.3).double()
    plain = copy.deepcopy(model)
    x = ids()
    replaced(model, x, x)
    with torch.no_grad():
        assert_close({"eval": model.eval()(x)[0]}, {"eval": plain.eval()(x)[0]}, torch.float64)
        model.train()
        plain.train()
        found, expected = (torch.stack([each(x)[0] for _ in range(300)]) for each in (model, plain))
    assert float(found.std(0).mean()) == pytest.approx(float(expected.std(0).mean()), rel=0.05)
    error = (found.mean(0) - expected.mean(0)) / (expected.std(0) * (2 / 300) ** 0.5)
    assert float(error.square().mean()) == pytest.approx(1, abs=0.3)


def test_gradients_accumulate_and_hooks_run():
    model = Gpt(subjects.Filled).double()
    plain, x = copy.deepcopy(model), ids()
    seen: list[str] = []
    for name in ("blocks.0.attention", "blocks.1.attention.qkv", "blocks.1"):
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: seen.append(name))
    replaced(model, x, x)
    seen.clear()
    for each in (model, plain):
        each.zero_grad()
        for _ in range(3):
            each(x, x)[1].div(3).backward()
    assert sorted(seen) == sorted(3 * ["blocks.0.attention", "blocks.1.attention.qkv", "blocks.1"])
    for one, two in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-13, atol=1e-13)


def test_a_hook_that_comes_later_runs_too():
    model, x, seen = Gpt(subjects.Filled), ids(), []
    replaced(model, x, x)
    model(x, x)
    model.blocks[0].attention.qkv.register_forward_hook(lambda *_: seen.append("inside"))
    model.blocks[1].attention.register_forward_hook(lambda *_: seen.append("around"))
    model(x, x)
    assert seen == ["inside", "around"]


def test_a_copy_is_the_module_as_written():
    model, x = Gpt(subjects.Filled).double(), ids()
    before = step(model, x, x)
    replaced(model, x, x)
    assert_same(step(copy.deepcopy(model), x, x), before)


def test_the_first_call_settles_it():
    model, x = Gpt(subjects.Filled).double(), ids()
    before = step(model, x, x)
    undo = rewriting.replace_part(model, "attention", "sdpa")
    assert_close(step(model, x, x), before, torch.float64)
    assert rewriting.of(model).outcomes["attention"]
    undo()
    assert_same(step(model, x, x), before)


def test_as_long_as_the_mask_reaches():
    model = Gpt(subjects.Filled).double()
    x = ids(1, LONGEST)
    before = step(model, x, x)
    replaced(model, x, x)
    assert_close(step(model, x, x), before, torch.float64)


@pytest.mark.parametrize("by", ["flash", "flash-hopper"])
def test_peakwards_own_kernel_takes_what_it_can(by):
    x = ids()
    model = Gpt(subjects.Filled)
    plain = copy.deepcopy(model)
    if by == "flash-hopper":  # It takes 16-bit types and longer heads.
        with pytest.raises(PeakwardError, match="flash-hopper does not take"):
            replaced(model, x, x, by=by)
        return
    replaced(model, x, x, by=by)
    assert_close(step(model, x, x), step(plain, x, x), torch.float32)


@pytest.mark.parametrize(
    ("kind", "why"), [("Sloped", "got a mask"), ("Filled", "no dropout, got 0.25")]
)
def test_peakwards_own_kernel_refuses_what_it_cannot(kind, why):
    x = ids()
    with pytest.raises(PeakwardError, match=why):
        replaced(
            Gpt(getattr(subjects, kind), p=0.25 if kind == "Filled" else 0.0), x, x, by="flash"
        )


@pytest.mark.full
def test_a_window_goes_to_the_kernel():
    model, x = Gpt(subjects.Windowed), ids()
    plain = copy.deepcopy(model)
    _, what = replaced(model, x, x, by="flash")
    assert what == {"windowed attention"}
    assert_close(step(model, x, x), step(plain, x, x), torch.float32)
