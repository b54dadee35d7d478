"""Attention and loss replaced in transformers' models, whose masks are made where all layers are called."""

import pytest
import torch
import torch.nn.functional as F

from peakward.lab.rewriting import rewriting

from .made import assert_close, assert_same, replaced, step

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Losses(torch.nn.Module):
    """A causal language model that gives its logits and its loss."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids, seen=None):
        out = self.model(input_ids=ids, labels=ids, attention_mask=seen, use_cache=False)
        return out.logits, out.loss


def gpt2(attention):
    config = transformers.GPT2Config(
        n_layer=2, n_embd=64, n_head=4, vocab_size=97, n_positions=32, bos_token_id=0, eos_token_id=0,
        attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, attn_implementation=attention,
    )  # fmt: skip
    return Losses(transformers.GPT2LMHeadModel(config))


def llama(attention):
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=96, vocab_size=97, attn_implementation=attention,
    )  # fmt: skip
    return Losses(transformers.LlamaForCausalLM(config))


def mistral(attention):
    config = transformers.MistralConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=96, vocab_size=97, sliding_window=5, attn_implementation=attention,
    )  # fmt: skip
    return Losses(transformers.MistralForCausalLM(config))


@pytest.mark.parametrize(
    ("make", "kind"), [(gpt2, "causal"), (llama, "causal"), (mistral, "windowed")]
)
def test_eager_attention_is_replaced_and_with_padding_left_alone(make, kind):
    """Padding hides all keys of its own queries by a finite number."""
    model, plain = make("eager"), make("eager")
    plain.load_state_dict(model.state_dict())
    ids = torch.randint(97, (2, 12))
    _, what = replaced(model, ids)
    assert what == {f"{kind} attention"}
    padded = torch.ones_like(ids)
    padded[0, :3] = 0
    for seen in (None, padded):
        found, expected = (step(each, ids, seen) for each in (model, plain))
        assert_close(found, expected, torch.float32)


@pytest.mark.parametrize("make", [llama])
def test_the_loss_takes_the_output_layer_with_it(make):
    model, plain = make("sdpa"), make("sdpa")
    plain.load_state_dict(model.state_dict())
    ids = torch.randint(97, (2, 12))
    _, what = replaced(model, ids, part="loss", by="chunked")
    assert what == {"output layer and cross-entropy (chunked)"}
    assert_close(step(model, ids), step(plain, ids), torch.float32)


class Scored(Losses):
    """A causal language model whose logits are scored outside it."""

    def forward(self, ids):
        logits = self.model(input_ids=ids, use_cache=False).logits
        return logits, F.cross_entropy(logits.float().flatten(0, 1), ids.flatten())


@pytest.mark.parametrize(("scope", "n_large"), [("block", 0), ("model", 1)])
@pytest.mark.parametrize("kind", [Losses, Scored])
def test_blocks_stay_out_of_the_graph_of_the_loss(kind, scope, n_large):
    """So that their compilation takes as long with another loss as with torch's."""
    model, plain = kind(llama("sdpa").model), kind(llama("sdpa").model)
    plain.load_state_dict(model.state_dict())
    ids = torch.randint(97, (2, 12))
    undo = rewriting.replace_part(model, "loss", "recomputed")
    graphs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewriting, "inductor", lambda _: _kept_in(graphs))
        rewriting.of(model).compiled("default", scope)
        assert_close(step(model, ids), step(plain, ids), torch.float32)
    attentions = [
        sum(node.target is F.scaled_dot_product_attention for node in each.graph.nodes)
        for each in graphs
    ]
    assert attentions.count(2) == n_large
    assert attentions.count(1) == (1 if scope == "block" else 0)
    undo()
    assert_same(step(model, ids), step(plain, ids))
    assert type(model.model.model) is transformers.LlamaModel


def _kept_in(graphs):
    def inner(graph, examples):
        graphs.append(graph)
        return graph.forward

    return inner
