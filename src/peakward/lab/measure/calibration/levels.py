"""The levels of this machine's memory: read bandwidth and latency by working set.

One call sweeps the set so often that its launch is hidden, one sweep after another. Sweeps side by side
give wrong rates: an H100 that summed 256 MiB four times as rows of one tensor found three of four reads
in its L2 (6.95 TB/s where memory gives 3.35), and summed 4 MiB from its L1s (13 TB/s).

Latency is how long a load takes that must wait for the one before it. The set is one cycle through its lines
in random order. Each line holds the place of the next, so nothing can fetch ahead. On a CPU one core follows
it, in pages of the usual size: beyond the reach of the TLB, walking the page table is part of a load. On a
GPU one warp follows it.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from peakward.kernels.ops.pointer_chase import native
from peakward.lab.measure import probe, proc
from peakward.lab.measure.calibration.timing import Attempt, NotMeasurableError, device_s
from peakward.lab.measure.proc import Cache
from peakward.records.calibration import LevelRate, LoadLatency
from peakward.records.case import DeviceType

KIB, MIB = 2**10, 2**20
SMALLEST_BYTES: dict[DeviceType, int] = {"cuda": 4 * MIB, "cpu": 8 * KIB}
"""The smallest working set. A GPU's first levels belong to a multiprocessor, and torch's kernels cannot
be kept in them."""
GROWTH = 4
BEYOND: dict[DeviceType, int] = {"cuda": 16, "cpu": 4}
"""The number of last caches that a working set fills at least to count as memory: at most one part in
so many is then found in the cache. On two cores with 32 MiB of L3, 128 MiB gave the copy's bandwidth."""
ROOM = 4
"""The multiple of a working set that must be free in the host's memory."""
UNKNOWN_BYTES = 32 * MIB
"""The assumed size of the last cache where the machine does not say."""
READ_BYTES: dict[DeviceType, int] = {"cuda": 1024 * MIB, "cpu": 64 * MIB}
"""The bytes that one call reads: a fraction of a ms on a GPU, a few ms on two cores."""
FLOAT_BYTES = 4


def level_attempts(device_type: DeviceType) -> Iterator[Attempt]:
    """Working sets from the smallest level that can be told apart, up to memory."""
    for size, level, capacity in sets(device_type):
        rate = partial(_rate, size, level, capacity, device_type)
        yield Attempt(f"working set of {size} bytes", rate)


def sets(device_type: DeviceType) -> tuple[tuple[int, str | None, int | None], ...]:
    """The bytes of each working set, the level that it lies in, and the size of a cache of that name."""
    known, beyond = caches(device_type), BEYOND[device_type]
    capacity = {cache.name: cache.size_bytes for cache in known}
    sizes = working_sets(SMALLEST_BYTES[device_type], known, beyond)
    levels = [level_of(size, known, beyond) for size in sizes]
    return tuple(
        (size, level, None if level is None else capacity.get(level))
        for size, level in zip(sizes, levels, strict=True)
    )


def caches(device_type: DeviceType) -> tuple[Cache, ...]:
    """The caches of this device, the smallest first; none where it does not say."""
    if device_type == "cpu":
        return proc.caches()
    here = torch.cuda.get_device_properties(torch.cuda.current_device())
    return (Cache("L2", here.L2_cache_size),)


def working_sets(smallest: int, known: Sequence[Cache], beyond: int) -> tuple[int, ...]:
    """The sizes from the smallest, by factors of four, to the first that lies in memory."""
    last = known[-1].size_bytes if known else UNKNOWN_BYTES
    sizes = [smallest]
    while sizes[-1] < beyond * last:
        sizes.append(sizes[-1] * GROWTH)
    return tuple(sizes)


def level_of(size: int, known: Sequence[Cache], beyond: int) -> str | None:
    """The level of a working set: the smallest cache that holds it twice, since other data use it too.

    None where a cache holds it once but not twice, and where the caches are not known.
    """
    for cache in known:
        if size <= cache.size_bytes:
            return cache.name if 2 * size <= cache.size_bytes else None
    return "memory" if known and size >= beyond * known[-1].size_bytes else None


def n_sweeps(size: int, known: Sequence[Cache], device_type: DeviceType) -> int:
    """The number of sweeps over the set in one call: as many as read READ_BYTES, at least one.

    On a CPU, whose cores sweep side by side, it is one beyond the last cache: else one core would find
    there what another fetched.
    """
    last = known[-1].size_bytes if known else UNKNOWN_BYTES
    if device_type == "cpu" and size > last:
        return 1
    return max(1, READ_BYTES[device_type] // size)


def sweeps(size: int, n: int, device_type: DeviceType) -> Callable[[], Tensor]:
    """A call that reads the set `n` times; on a CPU each core takes whole sweeps."""
    values = torch.rand(size // FLOAT_BYTES, device=device_type)
    if device_type == "cpu":
        rows = values.expand(n, -1)
        return lambda: rows.sum(dim=1)
    from peakward.kernels.ops.sweep import triton

    here = torch.cuda.get_device_properties(torch.cuda.current_device())
    n_programs = here.multi_processor_count * triton.PROGRAMS_PER_MULTIPROCESSOR
    return lambda: triton.sweep(values, n, n_programs)


def refuse_without_room(size: int, device_type: DeviceType) -> None:
    """Keeps the host from swapping.

    Raises:
        NotMeasurableError: A working set would fill the host's memory.
    """
    if device_type == "cpu" and ROOM * size > proc.available_bytes():
        raise NotMeasurableError(f"{size} bytes are more than a quarter of the memory that is free")


def _rate(
    size: int, level: str | None, capacity_bytes: int | None, device_type: DeviceType
) -> LevelRate:
    refuse_without_room(size, device_type)
    n = n_sweeps(size, caches(device_type), device_type)
    call_s = device_s(sweeps(size, n, device_type), device_type)
    return LevelRate(
        level=level,
        working_set_bytes=size,
        capacity_bytes=capacity_bytes,
        bytes_per_s=n * size / call_s,
    )


LINE_BYTES = 128
"""The distance from one place to the next: a line of an NVIDIA GPU or of Apple's CPUs, and two lines of
other CPUs, which may fetch lines in pairs."""
OFFSET_BYTES = 8
N_LOADS: dict[DeviceType, int] = {"cuda": 2**13, "cpu": 2**18}
"""The loads of one call. They take some ms on a GPU, beside which a launch is nothing. On a CPU they
take 0.3 ms from the first cache, beside which the call is nothing, and 50 ms from the memory of a
shared machine."""
MOST_WARMING_LOADS = 2**18
"""The most loads made before any is timed; a shorter cycle is followed once. 32 MiB have so many lines."""
Chase = Callable[[Tensor, Tensor, int], None]


def latency_attempts(device_type: DeviceType) -> Iterator[Attempt]:
    """The working sets of `levels`.

    Raises:
        NotMeasurableError: a CPU whose machine has no C++ compiler.
    """
    chase = _chase(device_type)
    for size, level, _ in sets(device_type):
        latency = partial(_latency, chase, size, level, device_type)
        yield Attempt(f"working set of {size} bytes", latency)


def _chase(device_type: DeviceType) -> Chase:
    if device_type == "cuda":
        from peakward.kernels.ops.pointer_chase import triton

        return triton.chase
    compiler = probe.compiler()
    if compiler is None:
        raise NotMeasurableError(
            "no C++ compiler on the PATH, in which the chain of loads is written"
        )
    return native.build(compiler)


def cycle(size: int, device_type: DeviceType) -> Tensor:
    """Offsets in bytes: every line holds the offset of another, and the chain goes through all lines."""
    order = torch.randperm(size // LINE_BYTES, device=device_type) * LINE_BYTES
    table = torch.zeros(size // OFFSET_BYTES, dtype=torch.int64, device=device_type)
    table[order // OFFSET_BYTES] = order.roll(-1)
    return table


def _latency(chase: Chase, size: int, level: str | None, device_type: DeviceType) -> LoadLatency:
    refuse_without_room(size, device_type)
    table = cycle(size, device_type)
    position = torch.zeros(1, dtype=torch.int64, device=device_type)
    n_loads = N_LOADS[device_type]
    chase(table, position, min(size // LINE_BYTES, MOST_WARMING_LOADS))
    call_s = device_s(lambda: chase(table, position, n_loads), device_type)
    return LoadLatency(level=level, working_set_bytes=size, load_s=call_s / n_loads)
