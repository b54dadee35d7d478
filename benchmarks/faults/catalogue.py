"""Every program, in the order in which they run."""

from faults import (
    attention,
    bandwidth,
    communication,
    compiling,
    device,
    generation,
    host,
    loops,
    memory,
    numbers,
    precision,
)
from faults.clean import CLEAN
from faults.records import Clean, Fault

FAULTS: tuple[Fault, ...] = (
    *host.FAULTS,
    *compiling.FAULTS,
    *memory.FAULTS,
    *bandwidth.FAULTS,
    *precision.FAULTS,
    *attention.FAULTS,
    *communication.FAULTS,
    *generation.FAULTS,
    *numbers.FAULTS,
    *loops.FAULTS,
    *device.FAULTS,
)
PROGRAMS: tuple[Clean | Fault, ...] = (*CLEAN, *FAULTS)
