"""A worker without torch, for the tests of its parent: what it does stands in its arguments.

`python scripted_worker.py PLAN --requests FD --replies FD`, where PLAN is a comma-separated list of
acts, one a request; the last one is repeated.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from peakward.lab.measure.messages import (
    Calibrated,
    Checked,
    Event,
    Failed,
    FirstStepProfiled,
    Measured,
    MemoryRecorded,
    NumericsChecked,
    Profiled,
    RatesMeasured,
    Ready,
    Released,
    Request,
    Turn,
    TurnsTimed,
)
from peakward.records.calibration import LevelRate, Rates
from peakward.records.lever import NumericsVerdict
from peakward.records.measurement import FirstStep, MemoryUse, Run
from peakward.records.memory import MemoryMarks

MEASURED = Measured(
    run=Run(warmup_s=(2.0, 1.0), steps_s=(1.0,) * 10),
    doubts=(),
    phases=(),
    memory=MemoryUse(peak_allocated_bytes=5),
    telemetry=None,
    compile=None,
    n_parameters=7,
    loss=0.5,
)


def main() -> None:
    plan, requests_fd, replies_fd = sys.argv[1].split(","), int(sys.argv[3]), int(sys.argv[5])
    replies = os.fdopen(replies_fd, "wb")

    def send(reply) -> None:
        replies.write(msgspec.json.encode(reply) + b"\n")
        replies.flush()

    send(Ready(pid=os.getpid()))
    for line in os.fdopen(requests_fd, "rb"):
        request = msgspec.json.decode(line, type=Request)
        act(plan.pop(0) if len(plan) > 1 else plan[0], request, send, replies)


def act(name, request, send, replies) -> None:
    if hasattr(request, "path"):  # a trace, left half-written by whatever is no answer
        Path(request.path).write_bytes(b"a trace" if name == "answer" else b"a tr")
    send(Event(stage="timing", done=12, total=20, turn=1))
    print("some library prints this", '{"type":"Ready"}', flush=True)
    match name:
        case "answer" | "soiled":
            send(answer(type(request).__name__, request))
            send(Released(clean=name == "answer", held_bytes=3))
        case "fail":
            send(Failed(status="oom", reason="too big"))
        case "hang":
            time.sleep(600)
        case "stop":  # a process that does not even die of SIGTERM
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.kill(os.getpid(), signal.SIGSTOP)
        case "junk":
            os.write(replies.fileno(), b"a line of a library's own\n")
            time.sleep(600)
        case "endless":  # more than any answer holds, and no end of a line
            while True:
                os.write(replies.fileno(), bytes(1 << 20))
        case "killed-at-first":
            was_here = Path(os.environ["FIRST_OF_ALL"])
            if not was_here.exists():
                was_here.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            act("answer", request, send, replies)
        case "missing":
            send(Checked(missing="expected a module that is there, got none"))
            send(Released(clean=True, held_bytes=0))
        case (
            "wedge"
        ):  # nothing of Python's runs here any more, and what was started is nowhere near
            print(
                f"daemon {daemon(*(each.fileno() for each in (sys.stdout, replies)))}", flush=True
            )
            send(Event(stage="profiling"))
            ctypes.PyDLL(None).sleep(600)
        case "leave-a-daemon":
            print(f"daemon {daemon()}", flush=True)
            os._exit(5)
        case "exit":
            print("Traceback: no such module", file=sys.stderr, flush=True)
            os._exit(3)
        case "leave-a-child":  # which holds every inherited pipe open, the replies' too
            os.set_inheritable(replies.fileno(), True)
            child = subprocess.Popen(["sleep", "600"], close_fds=False)
            print(f"child {child.pid}", flush=True)
            os._exit(4)
        case _:
            if name not in ("SIGKILL", "SIGSTOP"):
                # Tests that run under nohup, say, have handed down that SIGHUP is ignored.
                signal.signal(signal.Signals[name], signal.SIG_DFL)
            os.kill(os.getpid(), signal.Signals[name])
            time.sleep(600)


def daemon(*kept) -> int:
    """The id of a process in a session of its own, whose parent is gone: it sleeps, with these pipes."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        child = os.fork()
        if child == 0:
            for fd in kept:
                os.set_inheritable(fd, True)
            os.execvp("sleep", ["sleep", "600"])
        os.write(write, str(child).encode())
        os._exit(0)
    os.wait()
    return int(os.read(read, 16))


def answer(name, request):
    if name == "TurnsRequest":
        medians = range(1, 1 + len(request.cases))
        return TurnsTimed(turns=tuple(Turn(median_s=each, peak_bytes=8) for each in medians))
    if name == "ProfileRequest":
        return Profiled(path=request.path, n_steps=request.n_steps, profiled_step_s=0.5)
    if name == "MemoryRequest":
        marks = MemoryMarks(
            begin=0,
            end=0,
            phases=(),
            modules=(),
            held=(),
            cleared=(0, 0),
            peak_allocated_bytes=None,
        )
        return MemoryRecorded(path=request.path, marks=marks)
    return {
        "MeasureRequest": MEASURED,
        "CheckRequest": Checked(),
        "NumericsRequest": NumericsChecked(
            verdicts=(NumericsVerdict(declared="exact", verdict="holds"),)
        ),
        "CalibrateRequest": Calibrated(
            matmul=(), copy_bytes_per_s=1e9, copy_size_bytes=8, doubt="it was crowded"
        ),
        "RatesRequest": RatesMeasured(
            rates=Rates(levels=(LevelRate(level="L2", working_set_bytes=8, bytes_per_s=1e9),))
        ),
        "FirstStepRequest": FirstStepProfiled(first_step=FirstStep(profiled_s=1.0)),
    }[name]


if __name__ == "__main__":
    main()
