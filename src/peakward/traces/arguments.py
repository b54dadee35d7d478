"""The recorded arguments of an operator."""

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
    """The trace does not record the requested property of an argument."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """An operator's arguments by position. Every method raises NotRecordedError where the trace has no clear
    answer."""

    dims: list[Any]
    types: list[Any]
    concrete: list[Any]

    def shape(self, i: int, rank: int | None = None) -> tuple[int, ...]:
        """The shape of a tensor argument; with `rank`, only of that rank."""
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
        """Bytes of an element of a tensor argument."""
        if not self.is_tensor(i):
            raise NotRecordedError
        return _ITEM_BYTES[self.types[i]]

    def n_bytes(self, i: int) -> int:
        """Bytes of a tensor argument as if it were dense: a trace's shapes do not show expanded tensors."""
        return math.prod(self.shape(i)) * self.item_bytes(i)

    def boolean(self, i: int) -> bool:
        """A recorded True or False."""
        value = str(_at(self.concrete, i))
        if value not in _BOOLS:
            raise NotRecordedError
        return _BOOLS[value]

    def listed(self, i: int) -> list[int]:
        """A recorded list of integers or booleans."""
        try:
            value = json.loads(str(_at(self.concrete, i)).lower())
        except ValueError as error:
            raise NotRecordedError from error
        if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
            raise NotRecordedError
        return value


def parsed(shape: str) -> Arguments:
    """The arguments of an entry of `Table.shapes`. Missing parts, and parts that are not lists, are empty."""
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
