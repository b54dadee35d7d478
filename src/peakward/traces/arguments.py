"""What a trace recorded of an operator's arguments."""

import json
import math
from dataclasses import dataclass
from typing import Any

_ITEM_BYTES = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1,
    "long int": 8, "long": 8, "long long": 8, "int": 4, "short": 2, "short int": 2,
    "signed char": 1, "unsigned char": 1, "bool": 1,
    "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip
_BOOLS = {"True": True, "False": False, "1": True, "0": False}


class NotRecordedError(LookupError):
    """The trace does not say what was asked of an argument."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """By position. Every question raises NotRecordedError where the trace has no clear answer."""

    dims: list[Any]
    types: list[Any]
    concrete: list[Any]

    def shape(self, i: int, rank: int | None = None) -> tuple[int, ...]:
        """Of a tensor; of this rank if one is asked for."""
        dims = _at(self.dims, i)
        if not isinstance(dims, list) or not all(type(dim) is int for dim in dims):
            raise NotRecordedError
        if rank is not None and len(dims) != rank:
            raise NotRecordedError
        return tuple(dims)

    def is_tensor(self, i: int) -> bool:
        """Whether an argument is one tensor of a known type."""
        return i < len(self.types) and str(self.types[i]) in _ITEM_BYTES

    def item_bytes(self, i: int) -> int:
        """Of a tensor's elements."""
        if not self.is_tensor(i):
            raise NotRecordedError
        return _ITEM_BYTES[self.types[i]]

    def n_bytes(self, i: int) -> int:
        """Of a tensor as if it lay dense in memory: a trace's shapes do not show what expands."""
        return math.prod(self.shape(i)) * self.item_bytes(i)

    def boolean(self, i: int) -> bool:
        """A concrete True or False."""
        value = str(_at(self.concrete, i))
        if value not in _BOOLS:
            raise NotRecordedError
        return _BOOLS[value]

    def listed(self, i: int) -> list[int]:
        """A concrete list of integers or booleans."""
        try:
            value = json.loads(str(_at(self.concrete, i)).lower())
        except ValueError as error:
            raise NotRecordedError from error
        if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
            raise NotRecordedError
        return value


def parsed(shape: str) -> Arguments:
    """An entry of `Table.shapes`; what it lacks, or is no list, is empty."""
    try:
        parts = json.loads(shape)
    except ValueError:
        parts = None
    parts = parts if isinstance(parts, list) else []
    lists = [part if isinstance(part, list) else [] for part in parts[:3]]
    return Arguments(*lists, *([] for _ in range(3 - len(lists))))


def _at(values: list[Any], i: int) -> Any:
    if i >= len(values):
        raise NotRecordedError
    return values[i]
