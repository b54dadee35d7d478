"""Matrix products by shape: square, thin in each direction, and over whole or broken waves."""

from collections.abc import Iterator
from functools import partial

import torch

from peakward.lab.measure.calibration.attempt import Attempt, NotMeasurableError
from peakward.lab.measure.calibration.product import Shape, Type, product, types
from peakward.lab.measure.calibration.timing import MAX_CALL_S, device_s
from peakward.records.calibration import Kind, ProductRate
from peakward.records.case import DeviceType

SQUARES: dict[DeviceType, tuple[int, ...]] = {
    "cuda": (512, 1024, 2048, 4096, 8192),
    "cpu": (256, 512, 1024),
}
THIN: dict[DeviceType, dict[Kind, Shape]] = {
    "cuda": {
        "small m": Shape(16, 16384, 8192),
        "small n": Shape(16384, 16, 8192),
        "small k": Shape(4096, 4096, 64),
    },
    "cpu": {
        "small m": Shape(4, 4096, 4096),
        "small n": Shape(4096, 4, 4096),
        "small k": Shape(1024, 1024, 16),
    },
}
"""The large operand of small m and small n is larger than the last cache, as a decoder's weights
are: 128 MiB on a GPU even in fp8. Multiples of 16, which fp8 needs."""
TILE = 256
"""The longer side of the largest tiles in the names of cuBLAS's kernels (128 × 256, 256 × 128)."""
DEPTH = 4096


def attempts(device_type: DeviceType) -> Iterator[Attempt]:
    """Every shape in every compute type, the least work first."""
    every = shapes(device_type)
    for each in types(device_type):
        known: list[float] = []
        for kind, shape in sorted(every, key=lambda pair: pair[1].flops):
            name = f"{each.name} {kind} {shape.m} × {shape.n} × {shape.k}"
            yield Attempt(name, partial(_rate, each, kind, shape, device_type, known))
    if device_type == "cpu":
        yield Attempt("partial wave", _no_waves)


def shapes(device_type: DeviceType) -> tuple[tuple[Kind, Shape], ...]:
    """The shapes that are multiplied on this device, with their kinds."""
    squares: list[tuple[Kind, Shape]] = [
        ("square", Shape(size, size, size)) for size in SQUARES[device_type]
    ]
    if device_type == "cpu":
        return (*squares, *THIN["cpu"].items())
    n_sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return (*squares, *THIN["cuda"].items(), *waves(n_sms))


def waves(n_sms: int) -> tuple[tuple[Kind, Shape], ...]:
    """A product of one tile for each multiprocessor, and one with a tile more, which takes another
    round.

    This assumes tiles of TILE × TILE. Smaller tiles make two or four whole rounds of the first, and
    leave as many tiles over in the second.
    """
    return (
        ("whole waves", Shape(TILE * n_sms, TILE, DEPTH)),
        ("partial wave", Shape(TILE * (n_sms + 1), TILE, DEPTH)),
    )


def _rate(
    each: Type, kind: Kind, shape: Shape, device_type: DeviceType, known: list[float]
) -> ProductRate:
    """The rate of the product. `known` are the type's rates so far; they show that a product would take
    too long."""
    expected_s = shape.flops / max(known) if known else 0.0
    if expected_s > MAX_CALL_S:
        raise NotMeasurableError(
            f"at the {max(known) / 1e9:.2g} GFLOP/s of smaller products it would take "
            f"{expected_s:.2g} s, more than {MAX_CALL_S} s"
        )
    with each.setting():
        product_s = device_s(product(each, shape, device_type), device_type)
    known.append(shape.flops / product_s)
    return ProductRate(
        kind=kind,
        compute_type=each.name,
        m=shape.m,
        n=shape.n,
        k=shape.k,
        flops_per_s=shape.flops / product_s,
    )


def _no_waves() -> ProductRate:
    raise NotMeasurableError("a CPU runs no waves of thread blocks")
