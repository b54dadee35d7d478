import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peakward.lab.levers import masks_left_out
from peakward.lab.levers.masks_left_out import leave_out_masks
from peakward.records.errors import PeakwardError

transformers = pytest.importorskip("transformers")
from transformers import masking_utils  # noqa: E402


@pytest.fixture(autouse=True)
def put_back():
    """Tests that take nothing back leave transformers as it was."""
    with pytest.MonkeyPatch.context() as each:
        for name in FUNCTIONS:
            each.setattr(masking_utils, name, getattr(masking_utils, name))
        each.setattr(masks_left_out, "_written", {})
        each.setattr(masks_left_out, "_running", masks_left_out._Running())
        yield


FUNCTIONS = ("find_packed_sequence_indices", "is_tracing")
PACKED = torch.tensor([[*range(8), *range(8)]] * 2)
IDS = torch.arange(32).view(2, 16)


def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1},
            **{"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64},
        )
    )


def gpt2():
    config = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 64, "n_positions": 32}
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**config, bos_token_id=0, eos_token_id=0)
    ).eval()


class Seen:
    """The masks of a graph's attention, of which there is one graph."""

    masked = None

    def __call__(self, graph, _examples):
        assert self.masked is None, "the model broke into several graphs"
        calls = [
            each for each in graph.graph.nodes if each.target is F.scaled_dot_product_attention
        ]
        self.masked = [each.kwargs.get("attn_mask") is not None for each in calls]
        return graph.forward


def masked_when_compiled(model, **inputs):
    torch._dynamo.reset()
    seen = Seen()
    out = torch.compile(model, backend=seen)(IDS, use_cache=False, **inputs).logits
    return seen.masked, out


@pytest.mark.parametrize("build", [llama, gpt2])
def test_a_graph_has_no_mask_and_the_same_logits(build):
    model = build()
    eager = model(IDS, use_cache=False).logits
    assert masked_when_compiled(model)[0] == [True]
    undo = leave_out_masks(model)
    masked, logits = masked_when_compiled(model)
    assert masked == [False]
    torch.testing.assert_close(logits, eager, rtol=1e-5, atol=1e-6)
    assert torch.equal(model(IDS, use_cache=False).logits, eager)
    undo()
    assert masked_when_compiled(model)[0] == [True]
    assert type(model).__name__ == build().__class__.__name__


def test_an_eager_pass_asks_no_tensor(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda each: asked.append(each) or True)
    model = llama()
    model(IDS, use_cache=False)
    assert len(asked) == 1
    leave_out_masks(model)
    model(IDS, use_cache=False)
    assert len(asked) == 1


def test_positions_that_are_given_are_looked_at_with_one_warning():
    """A caller that packs sequences has them kept apart."""
    model = llama()
    apart = model(IDS, position_ids=PACKED, use_cache=False).logits
    assert not torch.allclose(apart, model(IDS, use_cache=False).logits)
    leave_out_masks(model)
    with pytest.warns(UserWarning, match="expected a call without position_ids"):
        assert torch.equal(model(IDS, position_ids=PACKED, use_cache=False).logits, apart)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(IDS, None, PACKED, use_cache=False)
    masked, compiled = masked_when_compiled(model, position_ids=PACKED)
    assert masked == [True]
    torch.testing.assert_close(compiled, apart, rtol=1e-5, atol=1e-6)


def test_another_model_is_as_before():
    other = llama()
    before = other(IDS, position_ids=PACKED, use_cache=False).logits
    leave_out_masks(llama())
    assert masked_when_compiled(other)[0] == [True]
    assert torch.equal(other(IDS, position_ids=PACKED, use_cache=False).logits, before)


def test_padding_is_hidden_as_before():
    model, padding = llama(), torch.ones(2, 16, dtype=torch.long)
    padding[0, :5] = 0
    before = model(IDS, attention_mask=padding, use_cache=False).logits
    leave_out_masks(model)
    assert torch.equal(model(IDS, attention_mask=padding, use_cache=False).logits, before)
    assert masked_when_compiled(model, attention_mask=padding)[0] == [True]


def test_transformers_is_as_it_was_after_the_last_undo():
    """Whichever comes first."""
    before = [getattr(masking_utils, name) for name in FUNCTIONS]
    models = llama(), gpt2()
    undos = [leave_out_masks(each) for each in models]
    undos[0]()
    assert masked_when_compiled(models[0])[0] == [True]
    assert masked_when_compiled(models[1])[0] == [False]
    undos[1]()
    assert [getattr(masking_utils, name) for name in FUNCTIONS] == before


def test_a_module_of_ones_own_around_it():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = llama()

        def forward(self, ids, **inputs):
            return self.inner(ids, **inputs)

    model = WithLoss()
    leave_out_masks(model)
    assert masked_when_compiled(model)[0] == [False]
    assert type(copy.deepcopy(model).inner) is transformers.LlamaForCausalLM


def test_a_module_without_a_model_of_transformers_is_refused():
    with pytest.raises(
        PeakwardError, match=r"expected a model of transformers .*, got Linear without"
    ):
        leave_out_masks(nn.Linear(2, 2))
