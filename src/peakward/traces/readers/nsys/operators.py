"""Parses the range names that PyTorch's `emit_nvtx` writes."""

import re
from typing import NamedTuple

from peakward.traces.table import NONE, HostKind

_BEGIN = re.compile(r", (?:seq|op_id) = ")
_INTEGER = r"(?:0|-?[1-9]\d{0,17})"
_DIMENSIONS = rf"\[(?:{_INTEGER}(?:, {_INTEGER})*)?\]"
_FIELDS = re.compile(
    r"(?:, seq = (\d{1,18}))?(?:, op_id = \d+)?"
    rf"(?:, sizes = (\[(?:{_DIMENSIONS}(?:, {_DIMENSIONS})*)?\]))?"
    r"(?:, input_op_ids = \[[\d(), ]*\])?"
)
_DISPATCHED = re.compile(r"\w+::[\w.]+")


class Label(NamedTuple):
    """A range's name and the other fields in it."""

    name: str
    kind: HostKind
    """OP or RANGE."""
    sequence: int
    """NONE where there was none."""
    shape: str | None
    """The shape in the form of `Table.shapes`."""


def label(text: str) -> Label:
    """Take apart `aten::addmm, seq = 12, op_id = 3, sizes = [[2, 4], [4, 8]]`.

    The form is that of `getNvtxStr` in torch/csrc/profiler/util.cpp: `seq` stands only where
    autograd recorded the operator, `op_id` always, also in the range of a `record_function`. So a
    range is an operator where it has a `seq`, or an `op_id` and a name of the dispatcher's, as
    `c10d::alltoall_base_`; the rest (`FSDP::pre_forward (blocks.0)`, `nccl:all_to_all`) and every
    range that torch did not write stay ranges.
    """
    begin = _BEGIN.search(text)
    fields = _FIELDS.fullmatch(text, begin.start()) if begin else None
    if begin is None or fields is None:
        return Label(text, HostKind.RANGE, NONE, None)
    name, (sequence, sizes) = text[: begin.start()], fields.groups()
    is_operator = sequence is not None or _DISPATCHED.fullmatch(name) is not None
    return Label(
        name,
        HostKind.OP if is_operator else HostKind.RANGE,
        int(sequence) if sequence is not None and is_operator else NONE,
        f"[{sizes},null,null]" if sizes is not None and is_operator else None,
    )
