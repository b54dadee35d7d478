"""Operators with their FLOPs and bytes, the rates that they reached, and their share of the roofline.

Only operators with recorded shapes are covered. An operator that computes FLOPs owns all kernels launched
while it runs on their launching thread. If others of its kind run inside it, they own theirs and it has none,
so nothing counts twice. Any other kernel belongs to the operator that launched it, if that operator's bytes
are known.
"""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from peakward.records.device import Device
from peakward.records.errors import printable
from peakward.records.profile import OperatorRate
from peakward.traces.intervals import Nest, nest, rows_of
from peakward.traces.operator_work import operator_bytes, operator_flops, parsed
from peakward.traces.origins import Origins
from peakward.traces.ranges import launch_sites
from peakward.traces.table import NONE, GpuKind, HostKind, Indices, Ints, TraceTable

_SHAPE = msgspec.json.Decoder()


def operator_rates(
    table: TraceTable, origins: Origins, device: Device | None
) -> tuple[OperatorRate, ...]:
    """FLOPs, bytes and rates of the operators of each name and shape.

    With `device`, the device that the trace was taken on, also their share of its roof.
    """
    owned = work(table, origins)
    found = by_operator(table, owned)
    kernels = _kernels(table, owned)
    columns = zip(
        found.name.tolist(),
        found.shape.tolist(),
        found.instances.tolist(),
        found.flops.tolist(),
        found.n_bytes.tolist(),
        found.kernel_ns.tolist(),
        found.flops_per_s.tolist(),
        found.bytes_per_s.tolist(),
        strict=True,
    )
    rates = []
    for name, shape, n, flops, n_bytes, kernel_ns, flops_per_s, bytes_per_s in columns:
        dims, dtype = _arguments(table.shapes[shape])
        needed, moved = (None if each == NONE else each for each in (flops, n_bytes))
        share = None
        if device is not None:
            in_type = compute_type(dtype, kernels.get((name, shape), ()))
            time_s = kernel_ns * 1e-9
            share = roof_share(device, in_type, flops=needed, n_bytes=moved, time_s=time_s)
        rates.append(
            OperatorRate(
                name=table.names[name],
                dims=dims,
                dtype=dtype,
                n=n,
                flops=needed,
                n_bytes=moved,
                kernel_ns=kernel_ns,
                flops_per_s=None if math.isnan(flops_per_s) else flops_per_s,
                bytes_per_s=None if math.isnan(bytes_per_s) else bytes_per_s,
                roof_share=share,
            )
        )
    return tuple(rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRates:
    """A row for each operator that launched kernels and whose FLOPs or bytes are known."""

    row: Indices
    """Position in `Table.host`."""
    runs: Ints
    """How often the GPU ran it: more than once where graphs replay its launches."""
    flops: Ints
    """FLOPs that its maths needs; NONE where unknown or where it is no matmul, convolution or attention."""
    n_bytes: Ints
    """Inputs and outputs, each once; NONE where unknown."""
    kernels: Ints
    kernel_ns: Ints
    """The sum over its kernels, even where they ran side by side."""
    of_gpu: Indices
    """For each GPU row the position here of the operator that owns it, or NONE."""


def _kernels(table: TraceTable, owned: OperatorRates) -> dict[tuple[int, int], set[str]]:
    """The names of the kernels under each operator's name and shape."""
    has = owned.of_gpu != NONE
    rows = owned.row[owned.of_gpu[has]]
    triples = np.stack([table.host.name[rows], table.host.shape[rows], table.gpu.name[has]])
    names: dict[tuple[int, int], set[str]] = {}
    for name, shape, kernel in np.unique(triples, axis=1).T.tolist():
        names.setdefault((name, shape), set()).add(table.names[kernel])
    return names


def _arguments(shape: str) -> tuple[str, str | None]:
    """The sizes of the tensors among the arguments, and the type of the first."""
    dims, types, *_ = _SHAPE.decode(shape)
    sizes = [each for each in dims if isinstance(each, list) and each]
    shown = ", ".join("×".join(str(size) for size in each) for each in sizes)
    named = zip(dims, types or (), strict=False)
    dtype = next((printable(str(of)) for each, of in named if each), None)
    return printable(shown), dtype


_COMPUTE_TYPES = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
}
_ON_CUDA_CORES = re.compile(r"ffma|simt|sgemm")
_IN_TF32 = re.compile(r"tf32|s1688|tensorop")


def compute_type(dtype: str | None, kernels: Collection[str]) -> str | None:
    """The compute type of an operator's matmuls; None where names do not tell.

    fp32 operands may be multiplied in fp32 or, if the program allows it, in tf32 at some seven times the
    rate. Only the kernels' names tell which.
    """
    if dtype != "float":
        return _COMPUTE_TYPES.get(dtype or "")
    if any(_IN_TF32.search(name) for name in kernels):
        return "tf32"
    return "fp32" if any(_ON_CUDA_CORES.search(name) for name in kernels) else None


def roof_share(
    device: Device, in_type: str | None, *, flops: int | None, n_bytes: int | None, time_s: float
) -> float | None:
    """The roofline's time for these FLOPs and bytes over the measured time (Williams et al. 2009).

    None where the FLOPs' type has no known peak, or nothing is known. It is above 1 where tensors stayed in a
    cache, because the bytes are then an overestimate.
    """
    least_s = 0.0
    if flops is not None:
        peak = device.peak_flops_per_s.get(in_type or "")
        if peak is None:
            return None
        least_s = flops / peak.value
    if n_bytes is not None:
        least_s = max(least_s, n_bytes / device.bytes_per_s.value)
    return least_s / time_s if 0 < least_s <= time_s else None


_MOST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorWork:
    """Operators of one name and shape together, the longest kernel time first."""

    name: Indices
    """Position in `Table.names`."""
    shape: Indices
    """Position in `Table.shapes`."""
    instances: Ints
    flops: Ints
    n_bytes: Ints
    """Bytes of all instances; NONE as in Work."""
    kernel_ns: Ints

    @property
    def flops_per_s(self) -> NDArray[np.float64]:
        """Achieved FLOP/s; NaN where unknown or where no time was measured."""
        return _per_s(self.flops, self.kernel_ns)

    @property
    def bytes_per_s(self) -> NDArray[np.float64]:
        """Achieved bytes per second; NaN where unknown or where no time was measured."""
        return _per_s(self.n_bytes, self.kernel_ns)


def work(table: TraceTable, origins: Origins) -> OperatorRates:
    """The operators of a trace that launched kernels, with their FLOPs and bytes."""
    ops = rows_of(table.host, (HostKind.OP,))
    needed, moved = _known(table, ops)
    computing = nest(table.host, ops[needed != NONE])
    sites = launch_sites(table, origins.calls)
    owner = _leaves(table, computing).innermost(sites.thread, sites.at_ns)
    inside = computing.innermost(sites.thread, sites.at_ns) != NONE
    launcher = nest(table.host, ops).innermost(sites.thread, sites.at_ns)
    at = np.searchsorted(ops, launcher)
    knows_bytes = (launcher != NONE) & (np.append(moved, NONE)[at] != NONE)
    owner = np.where((owner == NONE) & ~inside & knows_bytes, launcher, owner)
    found = _summed(table, origins, owner)
    at = np.searchsorted(ops, found.row)
    return replace(found, flops=needed[at], n_bytes=moved[at])


def by_operator(table: TraceTable, found: OperatorRates) -> OperatorWork:
    """The sums of rows with equal name and shape."""
    unique, first, member = np.unique(
        _signature(table, found.row), return_index=True, return_inverse=True
    )
    name_and_shape = _name_and_shape(table, unique).astype(np.int32)
    instances = np.zeros(len(unique), dtype=np.int64)
    np.add.at(instances, member, found.runs)
    kernel_ns = np.zeros(len(unique), dtype=np.int64)
    np.add.at(kernel_ns, member, found.kernel_ns)
    flops_each, bytes_each = found.flops[first], found.n_bytes[first]
    order = np.argsort(-kernel_ns, kind="stable")
    return OperatorWork(
        name=name_and_shape[order, 0],
        shape=name_and_shape[order, 1],
        instances=instances[order],
        flops=np.where(flops_each == NONE, NONE, flops_each * instances)[order],
        n_bytes=np.where(bytes_each == NONE, NONE, bytes_each * instances)[order],
        kernel_ns=kernel_ns[order],
    )


def _signature(table: TraceTable, rows: NDArray[np.integer]) -> Ints:
    """One number for each pair of a name and a shape."""
    name, shape = table.host.name[rows].astype(np.int64), table.host.shape[rows]
    signature: Ints = name * (len(table.shapes) + 1) + shape + 1
    return signature


def _name_and_shape(table: TraceTable, signature: Ints) -> Ints:
    """The pairs that `_signature` numbered, one row each."""
    name, shape = np.divmod(signature, len(table.shapes) + 1)
    return np.stack([name, shape - 1], axis=1)


def _known(table: TraceTable, ops: NDArray[np.int64]) -> tuple[Ints, Ints]:
    """FLOPs and bytes of each operator, computed once for each name and shape."""
    unique, member = np.unique(_signature(table, ops), return_inverse=True)
    known = np.full((len(unique), 2), NONE, dtype=np.int64)
    for i, (name, shape) in enumerate(_name_and_shape(table, unique)):
        if shape != NONE:
            arguments = parsed(table.shapes[shape])
            both = (each(table.names[name], arguments) for each in (operator_flops, operator_bytes))
            known[i] = [NONE if value is None or value > _MOST else value for value in both]
    return known[member, 0], known[member, 1]


def _leaves(table: TraceTable, computing: Nest) -> Nest:
    """The rows that contain no other of them."""
    return nest(table.host, np.setdiff1d(computing.row[1:], computing.parents()))


def _summed(table: TraceTable, origins: Origins, owner: Indices) -> OperatorRates:
    """Kernels and their time by owner; FLOPs and bytes are unknown."""
    owner = np.where(table.gpu.kind == GpuKind.KERNEL, owner, NONE)
    row, of_gpu = np.unique(owner, return_inverse=True)
    n_unowned = int((row[:1] == NONE).sum())
    row, of_gpu = row[n_unowned:], of_gpu - n_unowned
    owned = of_gpu != NONE
    kernel_ns = np.zeros(len(row), dtype=np.int64)
    np.add.at(kernel_ns, of_gpu[owned], table.gpu.duration_ns[owned])
    run = np.unique(np.stack([of_gpu[owned], origins.run[owned]]), axis=1)
    unknown = np.full(len(row), NONE, dtype=np.int64)
    return OperatorRates(
        row=row.astype(np.int32),
        runs=np.bincount(run[0], minlength=len(row)),
        flops=unknown,
        n_bytes=unknown,
        kernels=np.bincount(of_gpu[owned], minlength=len(row)),
        kernel_ns=kernel_ns,
        of_gpu=of_gpu.astype(np.int32),
    )


def _per_s(amount: Ints, duration_ns: Ints) -> NDArray[np.float64]:
    known = (amount != NONE) & (duration_ns > 0)
    return np.where(known, amount / np.maximum(duration_ns, 1) * 1e9, np.nan)
