"""Operators with the rates that they reached, as records."""

import math

import msgspec
import numpy as np

from peakward.records.device import Device
from peakward.records.printable import printable
from peakward.records.profile import OperatorRate
from peakward.traces.origins import Origins
from peakward.traces.roof import compute_type, roof_share
from peakward.traces.table import NONE, Table
from peakward.traces.work import Work, by_operator, work

_SHAPE = msgspec.json.Decoder()


def operator_rates(
    table: Table, origins: Origins, device: Device | None
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


def _kernels(table: Table, owned: Work) -> dict[tuple[int, int], set[str]]:
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
