"""Which operators belong to a compiled part, in both directions."""

import msgspec
import pytest
import torch
from torch import nn

from peakward.lab.models.module_capture import capture_module
from peakward.records import codec
from peakward.records.op_graph import ModuleCapture


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8, bias=False)

    def forward(self, x):
        return x + self.linear(x).tanh()


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def total(y):
    return y.sum()


def captured(module, parts, **settings):
    return capture_module(
        module,
        (torch.zeros(4, 8),),
        **{"pass_": "train_step", "loss": total, "compiled": parts, **settings},
    )


def named(found):
    """(part, phase, name) of each call."""
    operators = found.graph.operators
    return [
        (each.part, operators[each.operator].phase, operators[each.operator].name)
        for each in found.compiled.calls
    ]


def test_calls_are_in_the_order_of_the_step_and_of_the_part_that_they_compute():
    module = Tower()
    told = named(captured(module, list(module.blocks)))
    block = ["aten.mm", "aten.tanh", "aten.add"]
    assert [each for each in told if each[1] == "forward"] == [
        *((1, "forward", name) for name in block),
        *((2, "forward", name) for name in block),
        *((0, "forward", name) for name in ("aten.addmm", "aten.sum")),
    ]


def test_gradients_are_of_the_part_whose_gradients_they_are_and_sums_of_two_too():
    module = Tower()
    told = [each for each in named(captured(module, list(module.blocks))) if each[1] == "backward"]
    last = ["aten.tanh_backward", "aten.mm", "aten.mm", "aten.add"]
    assert [name for part, _, name in told if part == 2] == last
    assert [name for part, _, name in told if part == 1] == last[:2], "the input needs none"
    assert [part for part, *_ in told] == sorted((part for part, *_ in told), key=(0, 2, 1).index)


def test_the_optimizer_is_of_none():
    module = Tower()
    told = named(captured(module, [module]))
    assert {part for part, phase, _ in told if phase == "optimizer"} == {0}
    assert {part for part, phase, _ in told if phase == "forward"} == {0, 1}, "the loss is outside"


def test_reads_follow_the_memory_through_views():
    module = Tower()
    found = captured(module, list(module.blocks))
    seen, calls = found.compiled.seen, found.compiled.calls
    product, tanh, added = calls[:3]
    memory = {each: [seen[i].memory for i in each.writes] for each in calls[:3]}
    assert [seen[i].memory for i in tanh.reads] == memory[product]
    assert memory[tanh][0] in [seen[i].memory for i in added.reads]
    weight = seen[product.reads[1]]
    assert found.lifetimes[weight.memory].held_for == "parameters"
    assert (weight.shape, weight.n_bytes) == ((8, 8), 256)


def test_of_an_expanded_tensor_its_elements_in_memory_are_counted():
    class Expanding(nn.Module):
        def forward(self, x):
            return x[:1].expand(4, 8) * 2

    module = Expanding()
    found = captured(module, [module], pass_="forward", loss=None)
    (read,) = found.compiled.calls[0].reads
    assert (found.compiled.seen[read].shape, found.compiled.seen[read].n_bytes) == ((4, 8), 32)


def test_what_a_part_returns_is_told_with_whether_it_may_get_a_gradient():
    module = Tower()
    found = captured(module, list(module.blocks))
    outputs = found.compiled.outputs
    assert [(each.part, each.differentiable) for each in outputs] == [(1, True), (2, True)]
    inferred = captured(module.eval(), list(module.blocks), pass_="forward", loss=None)
    assert [each.differentiable for each in inferred.compiled.outputs] == [False, False]


@pytest.mark.parametrize("whole", [True, False])
def test_a_module_is_told_that_it_is_compiled_and_its_blocks_and_its_loss_are_not(whole):
    asked = []

    class Asking(Block):
        def forward(self, x):
            asked.append(torch.compiler.is_compiling())
            return super().forward(x)

    module = Tower()
    module.blocks = nn.ModuleList([Asking(), Asking()])

    def loss(y):
        asked.append(torch.compiler.is_compiling())
        return y.sum()

    parts = [module] if whole else list(module.blocks)
    found = captured(module, parts, pass_="forward_backward", loss=loss)
    assert asked == [whole, whole, False] * 2, "in both steps"
    assert found.compiled.told == whole
    assert not torch.compiler.is_compiling()


def test_modules_in_a_part_are_called_by_nobody():
    module = Tower()
    found = captured(module, list(module.blocks))
    assert found.n_module_calls == 5, "blocks, their layers, and the head"
    assert found.compiled.n_module_calls == 1


def test_the_eager_step_is_recorded_as_before():
    module = Tower()
    eager, compiled = captured(module, ()), captured(module, list(module.blocks))
    assert eager.compiled is None
    same = msgspec.structs.replace(compiled, compiled=None, fingerprint=eager.fingerprint)
    assert same == eager
    assert eager.fingerprint != compiled.fingerprint


def test_it_is_stored_and_what_was_stored_before_it_is_read():
    module = Tower()
    found = captured(module, list(module.blocks))
    assert codec.from_json(codec.to_json(found), ModuleCapture) == found
    before = codec.to_json(captured(module, ())).replace(b',"compiled":null', b"")
    assert b"compiled" not in before
    assert codec.from_json(before, ModuleCapture).compiled is None


def test_twice_as_many_blocks_take_twice_the_room_at_most():
    class Deep(Tower):
        def __init__(self, n):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(n))

    def size(n):
        module = Deep(n)
        return len(codec.to_json(captured(module, list(module.blocks)).compiled))

    assert size(8) < 2.1 * size(4)


@pytest.mark.parametrize("pass_", ["forward", "train_step"])
def test_a_module_called_twice_is_two_parts(pass_):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, x):
            return self.block(self.block(x))

    module = Twice()
    loss = total if pass_ == "train_step" else None
    found = captured(module, [module.block], pass_=pass_, loss=loss)
    assert {each.part for each in found.compiled.calls if each.part} == {1, 2}
