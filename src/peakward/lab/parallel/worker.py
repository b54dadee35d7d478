"""A rank of a job that `launch` started: `python -m peakward.lab.parallel.worker TARGET ARGUMENTS DEVICE FD
STACK`.

It writes what it tells to the inherited pipe FD, and on SIGUSR1 where its main thread is to STACK.
"""

import gc

if __name__ == "__main__":
    gc.disable()  # While it imports, as `measure/worker.py` has it.

import faulthandler
import importlib
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, cast

import msgspec

from peakward.lab.parallel.launch import Told
from peakward.lab.parallel.ranks import joined
from peakward.records.case import DeviceType
from peakward.records.errors import PeakwardError


def main() -> None:
    """Joins the others, runs the function, tells its result or its error."""
    target, given, device, pipe, stack = sys.argv[1:]
    with Path(stack).open("w") as file:
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)
        out = int(pipe)

        def send(told: Told) -> None:
            os.write(out, msgspec.json.encode(told) + b"\n")

        def tell(step: int, where: str) -> None:
            send(Told(step=step, where=where))

        arguments = msgspec.json.decode(Path(given).read_bytes())
        tell(0, "joining the others")
        try:
            result = _run(target, arguments, cast(DeviceType, device), send, tell)
        except Exception as error:  # noqa: BLE001  its reason is told, and then the process ends
            lines = str(error).strip().splitlines() or [""]
            kind = "" if isinstance(error, PeakwardError) else f"{type(error).__name__}: "
            send(Told(error=f"{kind}{lines[0]}"[:2000]))
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)  # What NCCL still waits for would hold up an orderly end.
        send(Told(result=msgspec.json.encode(result).decode()))
        gc.freeze()  # What its steps imported: to look through it at the end takes a second.


def _run(target: str, arguments: Any, device: DeviceType, send: Any, tell: Any) -> Any:
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    with joined(device) as rank:
        gc.freeze()
        gc.enable()
        send(Told(where="its first step", pid=os.getpid()))
        return function(rank, arguments, tell)


if __name__ == "__main__":
    main()
