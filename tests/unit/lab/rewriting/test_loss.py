"""Cross-entropy replaced inside a module, and the output layer with it."""

import copy
import functools
import logging
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peakward.lab.rewriting import loss, rewriting
from peakward.lab.rewriting.later import Later
from peakward.records.errors import PeakwardError
from tiers import in_full

from . import subjects
from .made import assert_close, assert_same, ids, replaced, step
from .subjects import DIM, VOCAB, Filled, Gpt


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Tied(Gpt):
    """With the tokens' embedding for its output layer."""

    def __init__(self) -> None:
        super().__init__(Filled)


class Shifted(Gpt):
    """Written like transformers': logits in fp32, the last one's dropped, the loss as a module."""

    def __init__(self) -> None:
        super().__init__(Filled, tied=False)
        self.of_logits = nn.CrossEntropyLoss(ignore_index=-1)

    def forward(self, ids, targets):
        logits = self.head(self.hidden(ids)).float()
        kept = logits[..., :-1, :].contiguous()
        return logits, self.of_logits(kept.view(-1, VOCAB), targets[..., 1:].reshape(-1))


def marked(batch: int = 2, length: int = 12):
    """Targets of which some do not count."""
    targets = ids(batch, length)
    targets[0, 3:5] = -1
    return targets


@pytest.mark.parametrize("by", ["fused", "chunked", *in_full(["recomputed"])])
@pytest.mark.parametrize("make", [Tied, *in_full([Shifted])])
def test_loss_and_gradients_at_two_lengths_and_back(make, by):
    model, x, y = make(), ids(), marked()
    plain = copy.deepcopy(model)
    before = step(model, x, y)
    undo, what = replaced(model, x, y, part="loss", by=by)
    assert len(what) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert_close(step(model, x, y), before, torch.float32)
        short, of_short = ids(3, 7), marked(3, 7)
        assert_close(step(model, short, of_short), step(plain, short, of_short), torch.float32)
    undo()
    assert_same(step(model, x, y), before)


@pytest.mark.parametrize("make", [Shifted, *in_full([Tied])])
def test_logits_that_are_read_are_made_then(make):
    model, x, y = make(), ids(), marked()
    plain = copy.deepcopy(model)
    replaced(model, x, y, part="loss", by="chunked")
    logits, loss = model(x, y)
    assert isinstance(logits, Later)
    assert logits.shape == (2, 12, VOCAB)
    with pytest.warns(UserWarning, match="logits that were left out"):
        total = loss + logits.square().mean()
    expected_logits, expected_loss = plain(x, y)
    torch.testing.assert_close(logits.detach(), expected_logits.detach())
    total.backward()
    (expected_loss + expected_logits.square().mean()).backward()
    for one, two in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=2e-5, atol=2e-5)


def test_logits_that_are_first_read_without_gradients_keep_theirs():
    """The modes are those of the forward pass, whenever the read is."""
    model, x, y = Shifted(), ids(), marked()
    plain = copy.deepcopy(model)
    replaced(model, x, y, part="loss", by="chunked")
    for module in (model, plain):
        logits, loss = module(x, y)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            logits.argmax(-1)
        (loss + logits.square().mean()).backward()
    for one, two in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=2e-5, atol=2e-5)
    with pytest.warns(UserWarning, match="logits that were left out"):
        with torch.no_grad():
            logits, _ = model(x, y)
        assert logits.sum().requires_grad is False


@pytest.mark.parametrize("fused", [False, True])
def test_logits_are_not_computed_of_weights_that_were_updated_meanwhile(fused):
    model, x, y = Shifted(), ids(), marked()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
    replaced(model, x, y, part="loss", by="chunked")
    logits, loss = model(x, y)
    loss.backward()
    optimizer.step()
    assert logits.shape == (2, 12, VOCAB)
    with pytest.raises(PeakwardError, match=r"read them before optimizer\.step"):
        logits.argmax(-1)
    with pytest.warns(UserWarning, match="logits that were left out"):
        model(x, y)[0].argmax(-1)


def test_without_targets_the_module_gives_logits_as_before():
    model, x, y = Gpt(Filled), ids(), marked()
    plain = copy.deepcopy(model)
    replaced(model, x, y, part="loss", by="chunked")
    assert torch.equal(model(x)[0], plain(x)[0])


@pytest.mark.full
def test_gradients_accumulate():
    model, plain = (Gpt(Filled) for _ in range(2))
    plain.load_state_dict(model.state_dict())
    batches = [(ids(), marked()) for _ in range(3)]
    replaced(model, *batches[0], part="loss", by="chunked")
    for each in (model, plain):
        each.zero_grad()
        for x, y in batches:
            each(x, y)[1].div(3).backward()
    for one, two in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=2e-5, atol=2e-5)


@pytest.mark.full
def test_attention_and_loss_together_and_each_taken_back():
    model, x, y = Gpt(Filled), ids(), marked()
    before = step(model, x, y)
    undo_attention = rewriting.replace_part(model, "attention", "sdpa")
    undo_loss = rewriting.replace_part(model, "loss", "chunked")
    rewriting.settle(model, lambda: model(x, y))
    assert rewriting.of(model).outcomes.keys() == {"attention", "loss"}
    assert_close(step(model, x, y), before, torch.float32)
    undo_attention()
    assert_close(step(model, x, y), before, torch.float32)
    undo_loss()
    assert_same(step(model, x, y), before)


@pytest.mark.parametrize(
    ("turn", "why"),
    [
        (lambda x: x.transpose(1, 2), None),
        (lambda x: x.permute(0, 2, 1), None),
        (lambda x: x.reshape(2, VOCAB, 3), "of 3 dimensions"),
    ],
    ids=["transposed", "permuted", "reshaped"],
)
def test_logits_that_were_turned_for_the_loss(turn, why):
    """Classes come second in torch's loss of more than rows."""

    class Turns(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(DIM, VOCAB, bias=False)

        def forward(self, x, targets):
            logits = self.head(x)
            return logits, F.cross_entropy(turn(logits), targets, ignore_index=3)

    model, x, y = Turns(), torch.randn(2, 3, DIM), torch.randint(3, 9, (2, 3))
    before = step(model, x, y)
    if why is not None:
        with pytest.raises(PeakwardError, match=why):
            replaced(model, x, y, part="loss", by="chunked")
        return
    undo, what = replaced(model, x, y, part="loss", by="chunked")
    assert what == {"output layer and cross-entropy (chunked)"}
    assert_close(step(model, x, y), before, torch.float32)
    undo()


def test_backward_hooks_run_as_before():
    model, x, y, seen = Tied(), ids(), marked(), []
    before = step(model, x, y)
    model.blocks[0].attention.out.register_full_backward_hook(lambda *_: seen.append(1))
    undo, what = replaced(model, x, y, part="loss", by="fused")
    assert len(what) == 1
    assert_close(step(model, x, y), before, torch.float32)
    assert seen == [1]
    undo()


def test_a_line_that_is_logged_once_ends_no_graph():
    """transformers warns so between the output layer and the loss of its GPT-2."""

    class Warns(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(DIM, VOCAB, bias=False)

        def forward(self, x, targets):
            logits = self.head(x)
            log.told_once("a loss of its own")
            return logits, F.cross_entropy(logits, targets)

    log, x, y = logging.getLogger("a model"), torch.randn(6, DIM), torch.randint(VOCAB, (6,))
    with pytest.MonkeyPatch.context() as patch:
        once = functools.cache(lambda self, text: self.info(text))
        patch.setattr(logging.Logger, "told_once", once, raising=False)
        undo, what = replaced(Warns(), x, y, part="loss", by="chunked")
        undo()
    assert what == {"output layer and cross-entropy (chunked)"}


class Scored(nn.Module):
    """A linear model with another loss each time."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.head, self.options = nn.Linear(DIM, VOCAB), options

    def forward(self, x, y):
        logits = self.head(x)
        return logits, F.cross_entropy(logits, y, **self.options)


@pytest.mark.parametrize(
    ("options", "by", "why"),
    [
        ({"reduction": "sum"}, "fused", "no mean"),
        ({"weight": torch.ones(VOCAB)}, "fused", "weighs classes"),
        ({"size_average": False}, "fused", "as older torch was told"),
        ({"reduce": False}, "fused", "as older torch was told"),
        ({}, "chunked", "has a bias"),
        ({"label_smoothing": 0.1}, "recomputed", "has a bias"),
    ],
)
def test_another_loss_is_refused(options, by, why):
    x, y = torch.randn(6, DIM), torch.randint(VOCAB, (6,))
    with pytest.raises(PeakwardError, match=why):
        replaced(Scored(**options), x, y, part="loss", by=by)


def test_a_graph_that_cannot_be_read_is_left_as_written(monkeypatch):
    model, x, y = Shifted(), ids(), marked()
    before = step(model, x, y)

    def fails(*_given):
        raise ValueError("not enough values to unpack")

    monkeypatch.setattr(loss, "replace", fails)
    with pytest.raises(PeakwardError, match=r"could not be read .ValueError: not enough"):
        replaced(model, x, y, part="loss", by="chunked")
    assert_same(step(model, x, y), before)


@pytest.mark.full
def test_labels_are_smoothed_by_the_kernel_too():
    x, y = torch.randn(6, DIM), torch.randint(VOCAB, (6,))
    model = Scored(label_smoothing=0.1)
    plain = copy.deepcopy(model)
    replaced(model, x, y, part="loss", by="fused")
    assert_close(step(model, x, y), step(plain, x, y), torch.float32)


def test_logits_that_a_model_uses_are_not_left_out():
    class Uses(Gpt):
        def forward(self, ids, targets):
            logits, loss = super().forward(ids, targets)
            return logits, loss + 1e-4 * logits.logsumexp(-1).square().mean()

    x, y = ids(), marked()
    with pytest.raises(PeakwardError, match="read by more than the loss"):
        replaced(Uses(Filled), x, y, part="loss", by="chunked")
    model = Uses(Filled)
    plain = copy.deepcopy(model)
    replaced(model, x, y, part="loss", by="fused")
    assert_close(step(model, x, y), step(plain, x, y), torch.float32)


def test_a_module_without_a_loss_is_refused():
    model, x = subjects.Filled(), torch.randn(2, 5, DIM)
    with pytest.raises(PeakwardError, match="cross_entropy in its forward pass"):
        replaced(model, x, part="loss", by="fused")
