"""Forward passes that are given to a module and taken back in any order."""

import copy
import itertools
import pickle

import pytest
import torch
from torch import nn

from peakward.kernels.ops.forwards import before_first_call, give_forward, wrap_forward


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def plus(n):
    return lambda inner, args, kwargs: inner(*args, **kwargs) + n


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("has_own", [False, True])
def test_each_is_taken_back_before_the_others(order, has_own):
    module = Doubled()
    if has_own:
        module.forward = own = lambda x: 3 * x
    x, alone = torch.ones(()), 3 if has_own else 2
    undo = [wrap_forward([module], plus(10**i)) for i in range(3)]
    assert module(x) == alone + 111
    expected = 111
    for i in order:
        undo[i]()
        expected -= 10**i
        assert module(x) == alone + expected
    assert type(module) is Doubled
    assert vars(module).get("forward") is (own if has_own else None)


def test_modules_of_one_class_share_another_and_copies_have_the_first():
    both = [Doubled(), Doubled()]
    undo = wrap_forward(both, plus(1))
    assert type(both[0]) is type(both[1]) is not Doubled
    copied = copy.deepcopy(both[0])
    assert type(copied) is Doubled
    assert copied(torch.ones(())) == 2
    undo()
    assert [type(each) for each in both] == [Doubled, Doubled]


@pytest.mark.parametrize("has_own", [False, True])
def test_copies_of_one_that_was_given_several_have_the_first(has_own):
    module = Doubled()
    if has_own:
        module.forward = tripled
    for n in (1, 10):
        wrap_forward([module], plus(n))
    for made in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert type(made) is Doubled
        assert made(torch.ones(())) == (3 if has_own else 2)


def tripled(x):
    return 3 * x


def test_what_is_given_has_nothing_of_the_class_before():
    both = [Doubled(), Doubled()]
    undo = give_forward(both, lambda _kind, _own: lambda _self, x: 5 * x)
    assert type(both[0]) is type(both[1])
    around = wrap_forward(both, plus(1))
    x = torch.ones(())
    assert both[0](x) == 6
    undo()
    assert both[0](x) == 3
    around()
    assert type(both[0]) is Doubled


@pytest.mark.parametrize("taken_back_first", [False, True])
def test_the_first_call_alone_is_prepared(taken_back_first):
    module, seen = Doubled(), []
    x = torch.ones(())
    undo = before_first_call(module, lambda *args, **kwargs: seen.append((args, kwargs)))
    around = wrap_forward([module], plus(1))
    assert copy.deepcopy(module)(x) == 2
    assert type(copy.deepcopy(module)) is Doubled
    assert seen == []
    if taken_back_first:
        undo()
    assert module(x=x) == module(x) == 3
    assert seen == ([] if taken_back_first else [((), {"x": x})])
    undo()
    around()
    assert type(module) is Doubled


def test_a_module_that_is_named_twice_is_given_one_class():
    """As blocks that share all weights stand in one list."""
    block = nn.Linear(2, 2)
    undo = give_forward([block, block], lambda kind, own: lambda self, x: x + 1)
    assert torch.equal(block(torch.zeros(1, 2)), torch.ones(1, 2))
    undo()
    assert type(block) is nn.Linear
