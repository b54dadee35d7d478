"""A matrix in the place of blocks: it is the least squares' own, and what it guesses is nearer."""

import pytest
import torch

from peakward.lab.inference import distilling
from peakward.lab.inference.distilling import Bridged, distilled, fitted, of_unit_size, own_texts
from peakward.lab.inference.drafts import ModelDraft, without_blocks
from peakward.lab.inference.sequences import ContiguousCache
from peakward.records.errors import PeakwardError

from .test_speculation import PROMPTS, plain, speculated


@pytest.fixture
def model(make_decoder):
    return make_decoder({"n_kv_heads": 2, "n_layers": 4, "max_seq_len": 90})


def test_the_matrix_that_was_there_is_found():
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(400, 16, generator=generator, dtype=torch.float64)
    before[::7] *= 100  # As first tokens are.
    matrix = torch.randn(16, 16, generator=generator, dtype=torch.float64)
    found = fitted(before, before + of_unit_size(before) @ matrix)
    assert float((found - matrix).norm() / matrix.norm()) < 0.3  # The ridge draws it to 0.
    assert float((fitted(before, before)).norm()) == 0


def test_a_token_of_zeros_changes_nothing():
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(400, 16, generator=generator, dtype=torch.float64)
    behind = before + torch.randn(400, 16, generator=generator, dtype=torch.float64)
    with_zeros = [torch.cat((each, torch.zeros(4, 16))) for each in (before, behind)]
    torch.testing.assert_close(fitted(*with_zeros), fitted(before, behind))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_matrix_that_is_not_finite_is_refused(value, model):
    model.blocks[2].ff.down.weight.data.fill_(value)
    with pytest.raises(
        PeakwardError, match="expected a finite matrix in the place of blocks 1 to 2"
    ):
        distilled(model, range(1, 3), attention="as-model")


def test_texts_are_the_model_s_own_and_always_the_same(model):
    found = own_texts(model, "as-model")
    assert found.shape == (distilling.N_TEXTS, distilling.LENGTH)
    assert 0 <= int(found.min()) <= int(found.max()) < model.shape.vocab_size
    assert torch.equal(found, own_texts(model, "as-model"))
    assert len({tuple(each) for each in found.tolist()}) == distilling.N_TEXTS


@torch.no_grad()
def test_what_is_said_is_nearer_to_the_model(model):
    draft = distilled(model, range(1, 3), attention="as-model")
    bare = without_blocks(model, range(1, 3))
    ids = torch.randint(model.shape.vocab_size, (4, 30), generator=torch.Generator().manual_seed(9))
    exact = model(ids)
    assert float((draft(ids) - exact).norm()) < 0.9 * float((bare(ids) - exact).norm())
    assert isinstance(draft.blocks[0], Bridged)
    assert draft.blocks[0].block is model.blocks[0]
    assert [each is other for each, other in zip(draft.blocks, bare.blocks, strict=True)] == [
        False,
        True,
    ]
    assert not any(isinstance(each, Bridged) for each in model.blocks)


@torch.inference_mode()
def test_texts_with_its_guesses_are_the_model_s(model):
    draft = distilled(model, range(3, 4), attention="as-model")
    assert draft.shape.n_layers == len(draft.blocks) == 3
    cache = ContiguousCache(
        draft.shape, n_rows=len(PROMPTS), capacity=90, device="cpu", dtype=torch.float64
    )
    found = speculated(model, ModelDraft(draft, cache))
    assert found.tokens == plain(model)


def test_blocks_that_nothing_stands_before_are_refused(model):
    with pytest.raises(PeakwardError, match="begin at 1"):
        distilled(model, range(2), attention="as-model")
    with pytest.raises(PeakwardError, match="some of the blocks 0 to 3"):
        distilled(model, range(2, 6), attention="as-model")
