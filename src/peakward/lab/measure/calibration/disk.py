"""Times the reading of a file, past the kernel's page cache and from it."""

import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import sample
from statistics import median
from typing import BinaryIO

from peakward.lab.measure import proc
from peakward.lab.measure.calibration.timing import Attempt, NotMeasurableError
from peakward.lab.measure.clock import CpuClock
from peakward.lab.measure.timer import run_steps
from peakward.records.calibration import DiskRate, Source
from peakward.records.case import DeviceType

BLOCK_BYTES = 8 * 2**20
"""The size of a block: 5 ms of a drive that reads 1.7 GB/s."""
N_BLOCKS = 16
"""The number of blocks: 128 MiB in all, about a second of a drive that reads 0.1 GB/s."""
PAGE_BYTES = 4 * 2**10
N_PAGES = 256
"""The number of pages scattered over the file: 30 ms of a drive that answers in 0.1 ms, 3 s of a hard
disk."""
IN_MEMORY = ("tmpfs", "ramfs")


def attempts(_device_type: DeviceType) -> Iterator[Attempt]:
    """Reads both sources and scattered pages of a nameless file in the working directory; the file is
    gone however this ends."""
    with tempfile.TemporaryFile(dir=".", buffering=0) as file:
        for _ in range(N_BLOCKS):
            file.write(os.urandom(BLOCK_BYTES))  # Random bytes, which no drive can compress.
        os.fsync(file.fileno())
        yield Attempt("disk", partial(_from_disk, file))
        yield Attempt("disk, scattered pages", partial(_pages_from_disk, file))
        yield Attempt("page cache", partial(_from_page_cache, file))
        yield Attempt("page cache, scattered pages", partial(_pages_from_page_cache, file))


def _from_disk(file: BinaryIO) -> DiskRate:
    with past_the_cache(file.fileno()):
        return _rate("disk", BLOCK_BYTES, _read_blocks_s(file))


def _pages_from_disk(file: BinaryIO) -> DiskRate:
    with past_the_cache(file.fileno()):
        return _rate("disk", PAGE_BYTES, _read_pages_s(file))


def _from_page_cache(file: BinaryIO) -> DiskRate:
    _read_blocks_s(file)  # Brings all of it into the cache.
    return _rate("page cache", BLOCK_BYTES, _read_blocks_s(file))


def _pages_from_page_cache(file: BinaryIO) -> DiskRate:
    _read_blocks_s(file)
    return _rate("page cache", PAGE_BYTES, _read_pages_s(file))


def _rate(source: Source, block_bytes: int, blocks_s: Sequence[float]) -> DiskRate:
    return DiskRate(
        source=source,
        size_bytes=N_BLOCKS * BLOCK_BYTES,
        block_bytes=block_bytes,
        bytes_per_s=block_bytes / median(blocks_s),
    )


def _read_blocks_s(file: BinaryIO) -> tuple[float, ...]:
    return _read_s(file, BLOCK_BYTES, range(0, N_BLOCKS * BLOCK_BYTES, BLOCK_BYTES))


def _read_pages_s(file: BinaryIO) -> tuple[float, ...]:
    pages = range(0, N_BLOCKS * BLOCK_BYTES, PAGE_BYTES)
    return _read_s(file, PAGE_BYTES, sample(pages, N_PAGES))


def _read_s(file: BinaryIO, block_bytes: int, places: Sequence[int]) -> tuple[float, ...]:
    """The seconds of each block. The buffer begins with a page, as reading past the cache needs."""
    upcoming = iter(places)
    with mmap.mmap(-1, block_bytes) as block:
        return run_steps(
            lambda: os.preadv(file.fileno(), [block], next(upcoming)),
            CpuClock(),
            max_steps=len(places),
            done=lambda _progress: False,
        )


@contextmanager
def past_the_cache(descriptor: int) -> Iterator[None]:
    """Reads the open file from its drive inside the block.

    Raises:
        NotMeasurableError: The system or the file system has no way past the page cache, or the file
        has no drive.
    """
    direct = getattr(os, "O_DIRECT", None)
    if direct is None:
        raise NotMeasurableError("this system offers no way past its page cache (O_DIRECT)")
    kind = proc.file_system(os.fstat(descriptor).st_dev)
    if kind in IN_MEMORY:
        raise NotMeasurableError(f"the working directory lies in memory ({kind})")
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | direct)
    except OSError as error:
        raise NotMeasurableError(
            f"the working directory's file system ({kind or 'of unknown kind'}) offers no way past "
            f"the page cache: {error.strerror}"
        ) from error
    try:
        yield
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
