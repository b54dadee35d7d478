"""Traces made by hand: operators over values, as a capture would have them."""

from math import prod

import pytest

from peakward.prediction.operators.compiled_module.loops import PRODUCTS, Given, loops, whole
from peakward.prediction.operators.compiled_module.parts import Part, Value
from peakward.prediction.operators.tape import FLOAT, tensor
from peakward.records.op_graph import Operator


class Trace:
    """Writes operators down."""

    def __init__(self):
        self.loops, self.values, self.phase = [], [], "forward"

    def given(self, *shape, dtype=FLOAT, origin="given"):
        return self._value(tensor(dtype, *shape), origin)

    def parameter(self, *shape, dtype=FLOAT):
        return self.given(*shape, dtype=dtype, origin="parameter")

    def call(self, name, *reads, made, dtype=FLOAT, leaves=False, seen=None):
        """An operator that reads whole values (or as `seen` shapes them) and writes those `made` by shape."""
        shapes = made if isinstance(made, list) else [made]
        operands = tuple(tensor(dtype, *shape) for shape in shapes)
        seen = seen or {}
        given = tuple(
            whole(each, tensor(self.values[each].operand.dtype, *seen[each]))
            if each in seen
            else whole(each, self.values[each].operand)
            for each in reads
        )
        writes = tuple(self._value(each, "made", leaves=leaves) for each in operands)
        operator = Operator(
            name=f"aten.{name}",
            phase=self.phase,
            module=None,
            inputs=tuple(each.operand for each in given),
            outputs=operands,
            flops=2 * prod(given[0].operand.shape) * operands[0].shape[-1]
            if name in PRODUCTS
            else 0,
            bytes_read=sum(each.n_bytes for each in given),
            bytes_written=sum(each.n_bytes for each in operands),
        )
        self.loops += loops(Given(name, 0, operator, given, writes, operands, self._kept_apart))
        return writes if isinstance(made, list) else writes[0]

    @property
    def part(self):
        return Part(tuple(self.loops), tuple(self.values))

    def _value(self, operand, origin, leaves=False):
        self.values.append(Value(operand, operand.n_bytes, origin, leaves))
        return len(self.values) - 1

    def _kept_apart(self, operand):
        return self._value(operand, "made")


@pytest.fixture
def trace():
    return Trace()
