"""Reads a .gguf file, the format of llama.cpp: fields, and tensors in blocks of few bits.

The format is that of ggml's specification (docs/gguf.md), versions 2 and 3, little-endian. Nothing in a file
is trusted: every count and every place is held to the file's size before anything is made of that size, so
that a damaged or hostile file ends in one line.
"""

import mmap
import struct
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from peakward.lab.models.gguf_blocks import KINDS, Kind
from peakward.records.errors import PeakwardError, quoted

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_DIMENSIONS = 4
LONGEST_NAME = 1024
"""Bytes of a field's or a tensor's name; the format allows 65,535 and 64."""
ALIGNMENT = 32
STRING, ARRAY = 8, 9
SCALARS = {
    **{0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"},
    **{10: "<Q", 11: "<q", 12: "<d"},
}
"""The struct code of each scalar type of a field."""


class Stored(NamedTuple):
    """Where a tensor lies."""

    shape: tuple[int, ...]
    """As torch has it: the last dimension is the one whose numbers are neighbours."""
    kind: Kind
    first: int
    """Its first byte in the file."""

    @property
    def n_bytes(self) -> int:
        return prod(self.shape) // self.kind.n_numbers * self.kind.n_bytes


class GgufFile(NamedTuple):
    """The fields of a file, and its tensors by name."""

    path: Path
    fields: dict[str, object]
    tensors: dict[str, Stored]

    def tensor(self, name: str) -> Tensor:
        """The numbers in fp32."""
        stored = self.tensors[name]
        with self.path.open("rb") as file:
            file.seek(stored.first)
            data = bytearray(file.read(stored.n_bytes))
        if len(data) != stored.n_bytes:
            raise _damaged(self.path, f"{quoted(name)} ends behind the file")
        blocks = torch.frombuffer(data, dtype=torch.uint8).view(-1, stored.kind.n_bytes)
        return stored.kind.numbers(blocks).reshape(stored.shape)


def read(path: Path) -> GgufFile:
    """The fields and the places of the tensors; numbers are read when they are asked for.

    Raises:
        PeakwardError: no such file, none of the format, a damaged one, or types that cannot be read.
    """
    try:
        if not path.stat().st_size:
            raise _damaged(path, "it is empty")
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _Reader(path, data).whole()
    except OSError as error:
        raise PeakwardError(
            f"expected a .gguf file in {str(path)!r}, got: {error.strerror}"
        ) from error


def _damaged(path: Path, what: str) -> PeakwardError:
    return PeakwardError(
        f"expected a whole .gguf file, got {path.name}, which is damaged: {what}; download it again"
    )


class _Reader:
    """Goes through the head of a file once, from its start."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    def whole(self) -> GgufFile:
        if self._taken(4) != MAGIC:
            raise PeakwardError(
                f"expected a .gguf file, got {self.path.name}, which does not begin as one: download it again"
            )
        if (version := self._scalar("<I")) not in VERSIONS:
            raise PeakwardError(
                f"expected a .gguf file of version 2 or 3, got {self.path.name} of version {version}"
            )
        # 8 bytes of a name's length and 4 of a type are the least that each of them takes.
        n_tensors, n_fields = self._count(12), self._count(12)
        fields = dict(self._field() for _ in range(n_fields))
        heads = [self._tensor_head() for _ in range(n_tensors)]
        alignment = fields.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment % 8:
            raise _damaged(self.path, f"an alignment of {quoted(alignment)}")
        start = -(-self.at // alignment) * alignment
        tensors = {}
        for name, shape, kind, offset in heads:
            tensor = Stored(shape, kind, start + offset)
            if tensor.first + tensor.n_bytes > len(self.data):
                raise _damaged(self.path, f"{quoted(name)} ends behind the file")
            if name in tensors:
                raise _damaged(self.path, f"two tensors are named {quoted(name)}")
            tensors[name] = tensor
        placed = sorted(tensors.items(), key=lambda each: each[1].first)
        for (one, before), (two, after) in pairwise(placed):
            if after.first < before.first + before.n_bytes:
                raise _damaged(self.path, f"{quoted(one)} and {quoted(two)} share bytes")
        return GgufFile(self.path, fields, tensors)

    def _taken(self, n: int) -> bytes:
        if n > len(self.data) - self.at:
            raise _damaged(self.path, f"it ends at byte {len(self.data):,}")
        self.at += n
        return self.data[self.at - n : self.at]

    def _scalar(self, code: str) -> int:
        (value,) = struct.unpack(code, self._taken(struct.calcsize(code)))
        found: int = value
        return found

    def _count(self, least_bytes: int) -> int:
        """A number of things, each of at least so many bytes, which the rest of the file can hold."""
        n = self._scalar("<Q")
        if n * least_bytes > len(self.data) - self.at:
            raise _damaged(self.path, f"it ends at byte {len(self.data):,}")
        return n

    def _text(self) -> str:
        return self._taken(self._count(1)).decode("utf-8", "replace")

    def _name(self) -> str:
        name = self._text()
        if not 0 < len(name) <= LONGEST_NAME:
            raise _damaged(self.path, f"a name of {len(name):,} characters")
        return name

    def _field(self) -> tuple[str, object]:
        return self._name(), self._value(self._scalar("<I"))

    def _value(self, kind: int) -> object:
        if kind == STRING:
            return self._text()
        if kind in SCALARS:
            return self._scalar(SCALARS[kind])
        if kind != ARRAY:
            raise _damaged(self.path, f"a field of the unknown type {kind}")
        inner = self._scalar("<I")
        if inner == STRING:
            return [self._text() for _ in range(self._count(8))]
        if inner not in SCALARS:
            raise _damaged(self.path, f"a list of the type {inner}")
        code = SCALARS[inner]
        n = self._count(struct.calcsize(code))
        return list(struct.unpack(f"<{n}{code[1]}", self._taken(n * struct.calcsize(code))))

    def _tensor_head(self) -> tuple[str, tuple[int, ...], Kind, int]:
        name, n_dimensions = self._name(), self._scalar("<I")
        if not 1 <= n_dimensions <= MOST_DIMENSIONS:
            raise _damaged(self.path, f"{quoted(name)} has {n_dimensions} dimensions")
        sizes = [self._scalar("<Q") for _ in range(n_dimensions)]
        number, offset = self._scalar("<I"), self._scalar("<Q")
        if number not in KINDS:
            known = ", ".join(kind.name for kind in KINDS.values())
            raise PeakwardError(
                f"expected tensors in {known}, got {quoted(name)} of {self.path.name} in ggml's type "
                f"{number}: take another quantisation of the model"
            )
        kind = KINDS[number]
        if min(sizes) < 1 or sizes[0] % kind.n_numbers:
            raise _damaged(self.path, f"{quoted(name)} is {sizes} of {kind.name}")
        return name, tuple(reversed(sizes)), kind, offset
