"""The real worker with a fault planted in its steps: the workload's seed names it."""

import ctypes
import os
import signal
import time
from contextlib import contextmanager

import torch

from peakward.lab.levers.prepare import prepare
from peakward.lab.measure.worker import main

FAULTS = (
    "none",
    "raise",
    "segfault",
    "kill",
    "hang",
    "hang-in-c",
    "exit",
    "nan",
    "devour",
    "leak",
    "babble",
)
GIB = 2**30
KEPT = []


class Faulty:
    """A prepared step that goes wrong at its third step."""

    def __init__(self, prepared, fault):
        self._prepared, self._fault, self._n = prepared, fault, 0
        self.n_parameters, self.times_phases = prepared.n_parameters, prepared.times_phases
        self.ranged, self.uncaptured = prepared.ranged, prepared.uncaptured
        self.held_for_backward_bytes = prepared.held_for_backward_bytes

    def step(self, mark=lambda phase: None):
        self._n += 1
        if self._n == 3:
            go_wrong(self._fault)
        self._prepared.step(mark)

    def loss(self):
        return float("nan") if self._fault == "nan" else self._prepared.loss()


def go_wrong(fault):
    match fault:
        case "raise":
            raise ValueError("planted")
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(600)
        case "hang-in-c":  # holding Python's lock, so that no thread of the worker can run
            ctypes.PyDLL(None).sleep(600)
        case "exit":
            os._exit(7)
        case "devour":
            while True:
                KEPT.append(torch.ones(GIB // 8, dtype=torch.uint8))
        case "leak":
            KEPT.append(torch.ones(GIB, dtype=torch.uint8))
        case "babble":
            print('{"type":"Failed","status":"oom","reason":"not an answer"}', flush=True)
            os.write(1, b"\xff\xfe\n" * 100_000)


@contextmanager
def prepare_to_fail(case):
    with prepare(case) as prepared:
        yield Faulty(prepared, FAULTS[case.workload.seed])


if __name__ == "__main__":
    main(prepare_to_fail)
