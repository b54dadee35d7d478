"""Operators with their rates, as records."""

import math

import msgspec

from peakward.records.profile import OperatorRate
from peakward.traces.table import NONE, Indices, Table
from peakward.traces.work import by_operator, work

_SHAPE = msgspec.json.Decoder()


def operator_rates(table: Table, launches: Indices) -> tuple[OperatorRate, ...]:
    """What operators of each name and shape asked of the GPU, and how fast they got it."""
    found = by_operator(table, work(table, launches))
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
        rates.append(
            OperatorRate(
                name=table.names[name],
                dims=dims,
                dtype=dtype,
                n=n,
                flops=None if flops == NONE else flops,
                n_bytes=None if n_bytes == NONE else n_bytes,
                kernel_ns=kernel_ns,
                flops_per_s=None if math.isnan(flops_per_s) else flops_per_s,
                bytes_per_s=None if math.isnan(bytes_per_s) else bytes_per_s,
            )
        )
    return tuple(rates)


def _arguments(shape: str) -> tuple[str, str | None]:
    """The sizes of the tensors among the arguments, and the type of the first."""
    dims, types, *_ = _SHAPE.decode(shape)
    sizes = [each for each in dims if isinstance(each, list) and each]
    shown = ", ".join("×".join(str(size) for size in each) for each in sizes)
    named = zip(dims, types or (), strict=False)
    return shown, next((str(of) for each, of in named if each), None)
