"""Levers that a module's captured operators rule out before anything runs."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peakward.lab.models.module_capture import capture_module
from peakward.levers.catalogue import lever, needless, own_values, pull
from peakward.records.case import ModuleCase, Workload

OWN = ("flash", "flash-hopper")


class Attention(nn.Module):
    def __init__(self, *, written=False, head_dim=64, dropout=0.0, loss=True):
        super().__init__()
        self.packed, self.head_dim = nn.Linear(2 * head_dim, 6 * head_dim), head_dim
        self.written, self.dropout, self.loss = written, dropout, loss

    def forward(self, x, targets):
        packed = self.packed(x).unflatten(-1, (3, 2, self.head_dim)).permute(2, 0, 3, 1, 4)
        q, k, v = packed
        if self.written:
            scores = (q @ k.transpose(-1, -2)).softmax(-1)
            mixed = F.dropout(scores, self.dropout) @ v if self.dropout else scores @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        logits = mixed.transpose(1, 2).flatten(2).flatten(0, 1)
        return F.cross_entropy(logits, targets) if self.loss else logits.sum()


def operators(**fields):
    module = Attention(**fields).to(torch.bfloat16)
    x = torch.randn(2, 16, 2 * module.head_dim, dtype=torch.bfloat16)
    targets = torch.zeros(32, dtype=torch.int64)
    return capture_module(module, (x, targets), pass_="forward_backward").graph


def ruled_out(graph, *names, on=()):
    case = ModuleCase(
        source="py:m:f", fingerprint="0", workload=Workload(batch_size=2, seq_len=16), device="cuda"
    )
    for name in on:
        case = pull(lever(name), case)
    pulled = {name: pull(lever(name), case) for name in names}
    return {name for name in names if needless(lever(name), pulled[name], graph) is not None}


def test_attention_that_is_called_already_cannot_become_it():
    graph = operators()
    assert own_values(graph) == {"attention": "sdpa"}
    assert ruled_out(graph, "sdpa", "sdpa-cudnn", *OWN) == {"sdpa"}


def test_attention_written_out_can_become_any():
    graph = operators(written=True)
    assert own_values(graph) == {"attention": "naive"}
    assert ruled_out(graph, "sdpa", "sdpa-cudnn", *OWN) == set()


@pytest.mark.parametrize("written", [False, True])
def test_kernels_of_our_own_have_no_dropout(written):
    assert ruled_out(operators(written=written, dropout=0.1), "sdpa-cudnn", *OWN) == set(OWN)


def test_the_hopper_kernel_takes_few_head_dims():
    assert ruled_out(operators(head_dim=32), *OWN) == {"flash-hopper"}


def test_a_module_without_cross_entropy_has_no_loss_to_replace():
    losses = ("fused-loss", "chunked-loss", "recomputed-loss")
    assert ruled_out(operators(), *losses) == set()
    assert ruled_out(operators(loss=False), *losses) == set(losses)


def test_a_module_without_attention_has_none_to_replace():
    module = nn.Linear(8, 8)
    graph = capture_module(module, (torch.randn(4, 8),), pass_="forward").graph
    assert own_values(graph) == {}
    assert ruled_out(graph, "sdpa", *OWN) == {"sdpa", *OWN}
    assert ruled_out(graph, "bf16", "compile", "cuda-graphs") == set()


def test_a_module_that_the_host_waits_for_is_no_graph():
    class Waits(nn.Module):
        def forward(self, x, n):
            return x[: int(n.max())].sum()

    given = torch.randn(8, 8), torch.tensor([4])
    graph = capture_module(Waits(), given, pass_="forward").graph
    assert ruled_out(graph, "cuda-graphs") == {"cuda-graphs"}
    assert ruled_out(graph, "cuda-graphs", on=["no-masks"]) == set(), "it waits no more"
    assert ruled_out(graph, "cuda-graphs", on=["compile-model"]) == set()
    assert ruled_out(operators(), "cuda-graphs") == set()


def test_a_module_that_copies_numbers_to_the_device_is_no_graph():
    """torch refuses the copy while it captures, unless the memory is pinned."""

    class Copies(nn.Module):
        def forward(self, x):
            return (x * torch.tensor(2.0, device=x.device)).sum()

    graph = capture_module(Copies(), (torch.randn(8, 8),), pass_="forward").graph
    assert ruled_out(graph, "cuda-graphs") == {"cuda-graphs"}


class WrittenOut(nn.Module):
    def forward(self, x):
        low, high = x.chunk(2, -1)
        return torch.cat((-high, low), -1) * torch.sigmoid(x)


def test_what_torch_compile_fuses_is_tried_on_no_compiled_step():
    graph = capture_module(WrittenOut(), (torch.randn(4, 8),), pass_="forward").graph
    names = ("fused-norm", "fused-swiglu", "fused-rope", "torch-activation")
    assert ruled_out(graph, *names) == set()
    assert ruled_out(graph, *names, on=["compile"]) == set(names)


def test_parts_that_no_operator_shows_are_not_tried():
    graph = capture_module(nn.GELU(), (torch.randn(4, 8),), pass_="forward").graph
    names = {"torch-activation", "fused-swiglu", "fused-rope"}
    assert ruled_out(graph, *names) == names
