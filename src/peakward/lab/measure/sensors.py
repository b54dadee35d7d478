"""A process that samples a GPU's sensors for its parent: `python -m peakward.lab.measure.sensors ID`.

A thread would take Python's lock some five times a sample from the host that launches kernels: a timer
with such a thread added 1.4% to a step of 52 µs that only its host limits, on an H200. Imports no
torch.

It says READY and samples from BEGIN on. At END, or when its input closes (also if the parent is
killed), it prints all samples as one line of JSON.
"""

import argparse
import os
import select
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pynvml

from peakward.lab.measure import nvml

PERIOD_S = 0.1
"""The sensors move every 20 to 100 ms."""
READY = b"ready\n"
BEGIN = b"b"
END = b"e"
"""A message of its own, because a closed input may go unnoticed: processes that the parent has forked
since, such as a data loader's workers, hold the pipe open."""
STDIN = 0


class Sample(NamedTuple):
    """One reading; None for values that this device does not tell."""

    sm_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    reasons: int | None


def main(arguments: Sequence[str] | None = None) -> None:
    """Samples between BEGIN and END."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent answers a terminal's Ctrl-C.
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uuid", metavar="ID", help="UUID of the GPU or MIG instance")
    gpu = nvml.gpu_of(parser.parse_args(arguments).uuid)
    read_sample(gpu)  # the first call of each function looks it up in the driver's library
    replies = sys.stdout.buffer
    replies.write(READY)
    replies.flush()
    if os.read(STDIN, 1) != BEGIN:
        return
    samples = []
    while not select.select([STDIN], [], [], PERIOD_S)[0]:
        samples.append(read_sample(gpu))
    replies.write(msgspec.json.encode(samples) + b"\n")


def read_sample(gpu: nvml.Gpu) -> Sample:
    """The sensors now."""
    clock = nvml.query(pynvml.nvmlDeviceGetClockInfo, gpu.board, pynvml.NVML_CLOCK_SM)
    temperature = nvml.query(
        pynvml.nvmlDeviceGetTemperature, gpu.board, pynvml.NVML_TEMPERATURE_GPU
    )
    reasons = nvml.query(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu.board)
    return Sample(clock, _power_w(gpu), temperature, reasons)


def _power_w(gpu: nvml.Gpu) -> float | None:
    """The power of this instant; else the driver's running mean of a second."""
    fields = nvml.query(
        pynvml.nvmlDeviceGetFieldValues, gpu.board, [pynvml.NVML_FI_DEV_POWER_INSTANT]
    )
    if fields is not None and fields[0].nvmlReturn == pynvml.NVML_SUCCESS:
        return float(fields[0].value.uiVal) * 1e-3
    milliwatts = nvml.query(pynvml.nvmlDeviceGetPowerUsage, gpu.board)
    return None if milliwatts is None else milliwatts * 1e-3


if __name__ == "__main__":
    main()
