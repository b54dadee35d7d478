"""Which operators are kept, what each reads and writes, and to which module it belongs."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from peakward.lab.models.op_recorder import OpRecorder
from peakward.records.op_graph import Operand


def recorded(act, model=None, phase="forward"):
    with OpRecorder(model or nn.Identity(), name=str) as recorder:
        recorder.mark(phase)
        act()
    return recorder.graph().operators


def moved(act):
    """(name, bytes read, bytes written) of each operator."""
    return [(each.name, each.bytes_read, each.bytes_written) for each in recorded(act)]


X = torch.ones(4, 6)
INDEX = torch.tensor([[1, 1, 3]])


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda: X.view(24).t(), []),
        (lambda: torch.ops.aten._unsafe_view(X, (6, 4)), []),
        (lambda: torch.empty(9), []),
        (X[0, 0].item, []),
        (lambda: X + X, [("aten.add", 96, 96)]),
        (lambda: X + X[:1], [("aten.add", 96 + 24, 96)]),
        (lambda: X[:, :4] * X[:, :4].t(), [("aten.mul", 64, 64)]),
        (lambda: X[0, :4] * X[1, :4], [("aten.mul", 32, 16)]),
        (lambda: X.t() * 2, [("aten.mul", 96, 96)]),
        (lambda: X[:1].expand(4, 6) * 2, [("aten.mul", 24, 96)]),
        (lambda: X.clone().add_(X), [("aten.clone", 96, 96), ("aten.add_", 192, 96)]),
        (lambda: torch.zeros(5), [("aten.zeros", 0, 20)]),
        (lambda: torch.zeros_like(X), [("aten.zeros_like", 0, 96)]),
        (lambda: torch.empty(5).fill_(1), [("aten.fill_", 0, 20)]),
        (lambda: torch.empty(4, 6).copy_(X[:1]), [("aten.copy_", 24, 96)]),
        (lambda: X.to(torch.bfloat16), [("aten._to_copy", 96, 48)]),
        (lambda: torch.cat([X, X[:1]]), [("aten.cat", 120, 120)]),
        (lambda: torch.embedding(X, INDEX), [("aten.embedding", 24 + 3 * 24, 72)]),
        (lambda: torch.add(X, X, out=torch.empty(8, 6)[:4]), [("aten.add", 96, 96)]),
        (lambda: torch._foreach_add_([X.clone(), X.clone()], 1.0)[0], None),
    ],
)
def test_each_operand_moves_once_and_what_moves_nothing_is_not_kept(act, expected):
    if expected is None:
        expected = [("aten.clone", 96, 96), ("aten._foreach_add_", 192, 192)]
    assert moved(act) == expected


def test_of_the_rows_of_a_loss_only_the_targets_are_read():
    scores = torch.zeros(7, 11, requires_grad=True)
    targets = torch.zeros(7, dtype=torch.int64)
    forward, backward = [], []

    def act():
        loss = torch.nn.functional.nll_loss(scores, targets)
        loss.backward()

    for name, read, written in moved(act):
        if name == "aten.nll_loss_forward":
            forward.append((read, written))
        if name == "aten.nll_loss_backward":
            backward.append((read, written))
    assert forward == [(7 * 8 + 7 * 4, 8)]
    assert backward == [(7 * 8 + 4 + 4, 7 * 11 * 4)]


def test_tensors_of_a_list_that_are_alike_are_one_operand():
    a, b = torch.zeros(2, 3), torch.zeros(5)
    (add,) = recorded(lambda: torch._foreach_add_([a, b, a.clone()], 1.0))[1:]
    alike = (
        Operand(shape=(2, 3), dtype="float32", count=2),
        Operand(shape=(5,), dtype="float32"),
    )
    assert (add.inputs, add.outputs) == (alike, alike)


def test_a_fused_update_leaves_the_gradient_alone():
    parameter = nn.Parameter(torch.zeros(6))
    optimizer = torch.optim.AdamW([parameter], fused=True)
    parameter.grad = torch.ones(6)
    optimizer.step()
    (update,) = (each for each in recorded(optimizer.step) if "fused" in each.name)
    assert (update.bytes_read, update.bytes_written) == (4 * 24 + 4, 3 * 24)


def test_nothing_is_kept_outside_phases():
    with OpRecorder(nn.Identity(), name=str) as recorder:
        _ = X + 1
        recorder.mark("forward")
        _ = X * 1
        recorder.mark("optimizer")
        _ = X * 1
        recorder.mark(None)
        _ = X - 1
    _ = X / 1
    kept = [(each.name, each.phase, each.count) for each in recorder.graph().operators]
    assert kept == [("aten.mul", "forward", 1), ("aten.mul", "optimizer", 1)]


class Squared(nn.Module):
    """In a module of its own, called once or recomputed."""

    def __init__(self, *, recomputed):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.recomputed = recomputed

    def forward(self, x):
        if self.recomputed:
            return checkpoint(self.inner, x, use_reentrant=False).sin()
        return self.inner(x).sin()


@pytest.mark.parametrize("recomputed", [False, True])
def test_operators_belong_to_the_innermost_module_in_both_passes(recomputed):
    model = nn.Sequential(Squared(recomputed=recomputed), nn.Sequential(nn.Linear(6, 3)))
    with OpRecorder(model, name=str) as recorder:
        recorder.mark("forward")
        loss = model(X).cos().sum()
        recorder.mark("backward")
        loss.backward()
    found = {
        (each.phase[0], each.module, each.name.removeprefix("aten."), each.count)
        for each in recorder.graph().operators
    }
    again = {("b", "0.inner.0", "addmm", 1)} if recomputed else set()
    assert found >= {
        ("f", "0.inner.0", "addmm", 1),
        ("f", "0", "sin", 1),
        ("f", "1.0", "addmm", 1),
        ("f", None, "cos", 1),
        ("b", None, "neg", 1),
        ("b", "1.0", "sum", 1),
        ("b", "0", "cos", 1),
        ("b", "0.inner.0", "sum", 1),
        ("b", "0.inner.1", "tanh_backward", 1),
        *again,
    }


def test_a_gradient_is_added_up_in_the_module_of_its_parameter():
    model = nn.Sequential(nn.Sequential(nn.Linear(6, 3)))
    model(X).sum().backward()
    added = [
        each.module
        for each in recorded(lambda: model(X).sum().backward(), model)
        if each.name == "aten.add_"
    ]
    assert added == ["0.0", "0.0"]


def test_hooks_are_gone_afterwards():
    model = nn.Sequential(nn.Linear(6, 3))
    recorded(lambda: model(X), model)
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
