"""Operators with the rates that they reached and their share of the device's roofline, as records."""

import math
import re
from collections.abc import Collection

import msgspec
import numpy as np

from peakward.records.device import Device
from peakward.records.errors import printable
from peakward.records.profile import OperatorRate
from peakward.traces.origins import Origins
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
