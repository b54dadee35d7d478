"""Reading a file, past the kernel's page cache and from it."""

import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import BinaryIO

from peakward.lab.measure import proc
from peakward.lab.measure.calibration.attempt import Attempt, NotMeasurableError
from peakward.lab.measure.clock import CpuClock
from peakward.lab.measure.timer import run_steps
from peakward.records.case import DeviceType
from peakward.records.rates import DiskRate, Source

BLOCK_BYTES = 8 * 2**20
"""5 ms of a drive that reads 1.7 GB/s."""
N_BLOCKS = 16
"""128 MiB in all: about a second of a drive that reads 0.1 GB/s."""
IN_MEMORY = ("tmpfs", "ramfs")


def attempts(_device_type: DeviceType) -> Iterator[Attempt]:
    """Both sources, of a nameless file in the working directory, gone however this ends."""
    with tempfile.TemporaryFile(dir=".", buffering=0) as file:
        for _ in range(N_BLOCKS):
            file.write(os.urandom(BLOCK_BYTES))  # what no drive can compress
        os.fsync(file.fileno())
        yield Attempt("disk", partial(_from_disk, file))
        yield Attempt("page cache", partial(_from_page_cache, file))


def _from_disk(file: BinaryIO) -> DiskRate:
    with past_the_cache(file.fileno()):
        return _rate("disk", _read_blocks_s(file))


def _from_page_cache(file: BinaryIO) -> DiskRate:
    _read_blocks_s(file)  # so that all of it is there
    return _rate("page cache", _read_blocks_s(file))


def _rate(source: Source, blocks_s: Sequence[float]) -> DiskRate:
    return DiskRate(
        source=source,
        size_bytes=N_BLOCKS * BLOCK_BYTES,
        block_bytes=BLOCK_BYTES,
        bytes_per_s=BLOCK_BYTES / median(blocks_s),
    )


def _read_blocks_s(file: BinaryIO) -> tuple[float, ...]:
    """Seconds of each block, into a buffer that begins with a page, as reading past the cache needs."""
    file.seek(0)
    with mmap.mmap(-1, BLOCK_BYTES) as block:
        return run_steps(
            lambda: os.readv(file.fileno(), [block]),
            CpuClock(),
            max_steps=N_BLOCKS,
            done=lambda _progress: False,
        )


@contextmanager
def past_the_cache(descriptor: int) -> Iterator[None]:
    """Inside, the open file is read from its drive.

    Raises:
        NotMeasurableError: the system or the file system offers no way past the page cache, or
            the file has no drive.
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
