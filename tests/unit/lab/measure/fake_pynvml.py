"""Stands for pynvml in a sensors' process: one board, "GPU-a". FAKE_NVML says what goes wrong,
and each reading adds a line to the file FAKE_NVML_LOG."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

NVML_SUCCESS = 0
NVML_CLOCK_SM = 1
NVML_TEMPERATURE_GPU = 0
NVML_FI_DEV_POWER_INSTANT = 186

FAULT = os.environ.get("FAKE_NVML", "")
LOG = Path(os.environ["FAKE_NVML_LOG"])


class NVMLError(Exception):
    """As pynvml's."""


def nvmlInit():
    if FAULT == "hang":
        signal.pause()
    if FAULT == "chatter":
        print("a library prints this", flush=True)


def nvmlDeviceGetHandleByUUID(uuid):
    if uuid != b"GPU-a":
        raise NVMLError
    return "a"


def nvmlDeviceGetClockInfo(board, kind):
    if FAULT == "refuse":
        raise NVMLError
    return 1980


def nvmlDeviceGetTemperature(board, kind):
    return 40


def nvmlDeviceGetFieldValues(board, fields):
    return [SimpleNamespace(nvmlReturn=NVML_SUCCESS, value=SimpleNamespace(uiVal=500_250))]


def nvmlDeviceGetCurrentClocksThrottleReasons(board):
    with LOG.open("a") as log:
        print("read", file=log)
    n_readings = len(LOG.read_text().splitlines())  # the first comes before READY
    if FAULT == "crash" and n_readings == 3:
        os.abort()
    if FAULT == "babble" and n_readings == 3:
        print("a library prints this", flush=True)
    if FAULT == "stall" and n_readings == 3:
        signal.pause()
    return 0x4
