"""A module as it was."""

import pytest
from torch import nn

from peakward.lab.models.module_capture import untouched


class Changing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.count, self.items, self.table, self.names = 0, [1], {"a": 1}, {"x"}


def test_attributes_and_what_they_hold_come_back():
    module = Changing()
    items, weight = module.items, module.inner.weight
    with untouched(module):
        module.count, module.new, module.items = 5, "new", [7]
        items.append(2)
        module.table["b"] = 2
        module.names.add("y")
        module.inner.weight = nn.Parameter(weight.clone())
    assert module.count == 0
    assert not hasattr(module, "new")
    assert module.items is items
    assert (items, module.table, module.names) == ([1], {"a": 1}, {"x"})
    assert module.inner.weight is weight


def test_also_where_something_was_raised():
    module = Changing()
    with pytest.raises(ZeroDivisionError), untouched(module):
        module.count = 1 / 0 if module.items.clear() is None else 0
    assert module.items == [1]
