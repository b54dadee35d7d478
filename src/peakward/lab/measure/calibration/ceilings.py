"""Measures this device's ceilings: the rate of large matrix products and the bandwidth of a large copy.

This is the quick calibration: it measures what a floor needs, in the time that `peakward run` can
spare.
"""

from collections.abc import Callable

import torch

from peakward.lab.measure import proc
from peakward.lab.measure.calibration.products import Shape, Type, product_call, types
from peakward.lab.measure.clock import Clock, clock_for
from peakward.lab.measure.crowd import Crowd
from peakward.lab.measure.messages import Calibrated
from peakward.lab.measure.timer import StepProgress, collector_paused, run_steps
from peakward.records.calibration import MatmulRate
from peakward.records.case import DeviceType

MIB = 2**20
SIZES: dict[DeviceType, tuple[int, ...]] = {
    "cuda": (2048, 4096, 8192),
    "cpu": (512, 1024, 2048),
}
"""The sides of the products, multiples of every tile; on an H200 8192³ is within 1% of the best bf16
rate of any square."""
TIMED_S: dict[DeviceType, float] = {"cuda": 0.5, "cpu": 0.3}
"""The time per type and size: long enough for a GPU's clock to settle under load."""
MIN_REPEATS, MAX_REPEATS = 3, 2000
MAX_PRODUCT_S = 0.5
"""The longest product: a larger size is left out, because emulated types can be a hundred times slower."""
COPY_BYTES: dict[DeviceType, int] = {"cuda": 1024 * MIB, "cpu": 256 * MIB}
CACHES = 4
"""The least number of last-level caches that the copied buffer fills."""


def ceilings(device_type: DeviceType) -> Calibrated:
    """Measures every compute type that the device has, and the copy.

    It takes some 10 s on a GPU, under 10 s on two CPU cores.
    """
    clock, crowd = clock_for(device_type), Crowd()
    with crowd:
        every = [_best_rate(each, device_type, clock) for each in types(device_type)]
        size_bytes = copy_size_bytes(device_type)
        copy_bytes_per_s = _copy_bytes_per_s(size_bytes, device_type, clock)
    return Calibrated(
        matmul=tuple(rate for rate in every if rate is not None),
        copy_bytes_per_s=copy_bytes_per_s,
        copy_size_bytes=size_bytes,
        doubt=crowd.doubt() if device_type == "cpu" else None,
    )


def _best_rate(each: Type, device_type: DeviceType, clock: Clock) -> MatmulRate | None:
    """The best rate over the sizes that are quick enough here; None where the first is not."""
    best: MatmulRate | None = None
    expected_s = 0.0
    for size in SIZES[device_type]:
        if expected_s > MAX_PRODUCT_S or not _has_room(size, device_type):
            break
        shape = Shape(size, size, size)
        with each.setting():
            product_s = _seconds(product_call(each, shape, device_type), device_type, clock)
        rate = MatmulRate(compute_type=each.name, size=size, flops_per_s=shape.flops / product_s)
        if best is None or rate.flops_per_s > best.flops_per_s:
            best = rate
        expected_s = 8 * product_s
    return best


def _has_room(size: int, device_type: DeviceType) -> bool:
    """Whether operands in fp32, as they are drawn, and the result fit in half of the free memory."""
    return device_type == "cpu" or torch.cuda.mem_get_info()[0] > 2 * 4 * 4 * size**2


def _seconds(call: Callable[[], object], device_type: DeviceType, clock: Clock) -> float:
    """The seconds of the quickest of repeated calls, after one that loads the kernel. A ceiling is the
    best that the device did: a median, on two shared cores, put steps above 100%."""

    def done(progress: StepProgress) -> bool:
        return progress.n_issued >= MIN_REPEATS and progress.elapsed_s >= TIMED_S[device_type]

    call()
    with collector_paused():
        return min(run_steps(call, clock, max_steps=MAX_REPEATS, done=done))


def copy_size_bytes(device_type: DeviceType) -> int:
    """The size of one of the two buffers: a multiple of the last cache, and within a quarter of memory."""
    if device_type == "cuda":
        cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        free = torch.cuda.mem_get_info()[0]
    else:
        cache, free = proc.last_cache_bytes(), proc.available_bytes()
    wanted = max(COPY_BYTES[device_type], CACHES * cache)
    return min(wanted, free // 4) // MIB * MIB


def _copy_bytes_per_s(size_bytes: int, device_type: DeviceType, clock: Clock) -> float:
    """The bytes read and written, a second."""
    source = torch.randint(256, (size_bytes,), dtype=torch.uint8, device=device_type)
    target = torch.empty_like(source)
    return 2 * size_bytes / _seconds(lambda: target.copy_(source), device_type, clock)
