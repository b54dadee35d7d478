"""Captured models of transformers against the same models run eagerly, with values, on a CPU.

A CPU runs no fused kernel of CUDA: attention is written out in both, by transformers or by torch.
"""

from collections import Counter
from itertools import accumulate

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from peakward.lab.models.cuda_functions import AsOnCuda
from peakward.lab.models.lifetimes import LifetimeRecorder
from peakward.lab.models.module_capture import capture_module
from peakward.lab.models.op_recorder import OpRecorder
from peakward.records.op_graph import READ_BY_HOST
from tiers import rows_in_full

transformers = pytest.importorskip("transformers")

GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2}
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 61}
MODELS = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 61},
    "llama": {**SIZES, **GROUPED},
    "qwen2": {**SIZES, **GROUPED},
    "mistral": {**SIZES, **GROUPED, "head_dim": 8, "sliding_window": 8},
    "gemma": {**SIZES, **GROUPED, "head_dim": 8},
}
"""GPT-2 drops a tenth, as by default."""
IDS = torch.arange(48).reshape(3, 16) % 61


class Reads(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def built(kind, written_out_by):
    config = transformers.AutoConfig.for_model(kind, **MODELS[kind], use_cache=False)
    made = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager" if written_out_by == "transformers" else "sdpa"
    )
    return made.train()


def eager(module, given):
    """Operators and lifetimes of the second step forward and backward, and reads of values."""
    recorder, line, reads = OpRecorder(module, name=lambda path: path), LifetimeRecorder(), Reads()
    for seen in (False, True):
        module.zero_grad()
        if not seen:
            module(**given).loss.backward()
            continue
        with AsOnCuda((9, 0), recorder.keep_copy), line, recorder, reads:
            line.claim("parameters", module.parameters())
            line.claim("inputs", given.values())
            recorder.mark("forward")
            loss = module(**given).loss
            line.enter("backward")
            recorder.mark("backward")
        with line, recorder, reads:
            loss.backward()
    return recorder.graph(), line.lifetimes(), reads.n


def calls(graph):
    """How often each operator is called, with its FLOPs and bytes."""
    found = Counter()
    for each in graph.operators:
        if each.name != READ_BY_HOST:
            kind = (each.phase, each.name, each.inputs, each.outputs)
            found[*kind, each.flops, each.bytes_read, each.bytes_written] += each.count
    return found


def most_live(lifetimes, since):
    """The most bytes of tensors made from that operator on that exist at once."""
    changes = Counter()
    for each in lifetimes:
        if each.made >= since and each.held_for not in ("parameters", "inputs"):
            changes[each.made] += each.n_bytes
            changes[each.last + 1] -= each.n_bytes
    return max(accumulate(changes[at] for at in sorted(changes)))


QUICK = [(kind, "transformers") for kind in ("gpt2", "mistral", "gemma")]
QUICK += [(kind, "torch") for kind in ("gpt2", "llama", "qwen2")]
EVERY = [(kind, by) for kind in MODELS for by in ("transformers", "torch")]


@pytest.mark.parametrize(
    ("kind", "written_out_by"), [*QUICK, *rows_in_full(each for each in EVERY if each not in QUICK)]
)
def test_a_capture_has_the_operators_of_an_eager_step(kind, written_out_by):
    """Each call with its operands, FLOPs and bytes; what lives at most; and the waits for values."""
    module = built(kind, written_out_by)
    if kind == "gpt2" and written_out_by == "torch":
        module.eval()  # A CPU takes dropout inside of written-out attention apart.
    given = {"input_ids": IDS, "labels": IDS}
    with sdpa_kernel([SDPBackend.MATH]):
        found = capture_module(module, kwargs=given, pass_="forward_backward")
        graph, lifetimes, n_reads = eager(module, given)
    assert calls(found.graph) == calls(graph)
    waits = [x.count for x in found.graph.operators if x.name == READ_BY_HOST]
    assert sum(waits) == n_reads
    second = [i for i, each in enumerate(found.phases) if each == "forward"]
    begins = next(i for i in second if found.phases[i - 1] == "backward")
    assert most_live(found.lifetimes, begins) == most_live(lifetimes, 0)


GIVEN = {
    "nothing": ({}, False),
    "a mask of ones": ({"attention_mask": torch.ones(3, 16, dtype=torch.long)}, False),
    "padding": ({"attention_mask": (torch.arange(16) > 4).long().expand(3, 16)}, True),
    "positions": ({"position_ids": torch.arange(16)[None]}, False),
    "packed sequences": ({"position_ids": (torch.arange(16) % 8)[None]}, True),
}


@pytest.mark.parametrize(("more", "masked"), GIVEN.values(), ids=GIVEN.keys())
def test_a_mask_is_built_where_the_values_that_are_given_need_one(more, masked):
    """transformers looks into them. Where nothing is masked or packed, attention is told causal, and keys
    and values are not repeated for each head."""
    module = built("llama", "torch").bfloat16()
    found = capture_module(module, kwargs={"input_ids": IDS, **more})
    attention = [x for x in found.graph.operators if "dot_product" in x.name]
    assert {(x.causal, x.inputs[1].shape[1]) for x in attention} == {
        (not masked, 4 if masked else 2)
    }
    assert any(x.name == READ_BY_HOST for x in found.graph.operators)
