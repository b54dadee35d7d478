"""Counts what one step of a piece computes and moves, and measures its error against fp64."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from peakward.lab.micro.piece import Piece
from peakward.lab.models.op_recorder import OpRecorder
from peakward.lab.models.operator_work import stored_bytes
from peakward.records.measurement import PieceWork


def piece_work(piece: Piece) -> PieceWork:
    """Runs the piece once more under a watcher, and then its oracle, which takes the memory of fp64."""
    with torch.no_grad():  # As in the steps: with gradients, compiled code would be compiled again.
        output, moved_bytes, counted_by = _watched(piece)
    input_bytes = stored_bytes(piece.inputs)
    results = _tensors(output)
    joined = torch.cat(results, -1) if len(results) > 1 else None
    whole = joined if joined is not None else next(iter(results), None)
    return PieceWork(
        flops=piece.flops,
        input_bytes=input_bytes,
        least_bytes=input_bytes + stored_bytes(results),
        moved_bytes=moved_bytes,
        counted_by=counted_by,
        result=_kind(results, piece.inputs),
        allocated_bytes=_allocated_bytes(results, piece.inputs),
        difference=None if whole is None else _finite(difference(whole, piece.oracle())),
        value=_number(whole),
    )


def difference(result: Tensor, exact: Tensor) -> float:
    """max |result - exact| / max |exact|; 0 without elements."""
    gap = float((result.to(exact) - exact).abs().max())
    return gap / float(exact.abs().max()) if gap else 0.0


def _number(result: Tensor | None) -> float | None:
    return None if result is None or result.numel() != 1 else _finite(float(result))


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _watched(piece: Piece) -> tuple[Any, int | None, Literal["operators", "compiler"] | None]:
    """The result, the bytes moved and who counted them."""
    if piece.compiled is not None:
        output = piece.run()
        return output, piece.compiled.moved_bytes, "compiler"
    if not piece.dispatched:
        return piece.run(), None, None
    with OpRecorder(nn.Module(), name=str) as recorder:
        recorder.mark("forward")
        output = piece.run()
    moved = (
        each.count * (each.bytes_read + each.bytes_written) for each in recorder.graph().operators
    )
    return output, sum(moved), "operators"


def _tensors(output: Any) -> list[Tensor]:
    """The result of a piece as tensors; none where torch refused."""
    match output:
        case None:
            return []
        case Tensor():
            return [output]
        case np.ndarray():
            return [torch.from_numpy(output)]
        case [Tensor(), *_]:
            return list(output)
        case _:
            return [torch.tensor(output, dtype=torch.float64)]


def _kind(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> Literal["new", "view", "refused"]:
    if not results:
        return "refused"
    return "new" if _own_storages(results, inputs) else "view"


def _allocated_bytes(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> int:
    return sum(_own_storages(results, inputs).values())


def _own_storages(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> dict[int, int]:
    """The address and bytes of the results' storages that are not an input's."""
    known = {each.untyped_storage().data_ptr() for each in inputs}
    held = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in results}
    return {address: size for address, size in held.items() if address not in known}
