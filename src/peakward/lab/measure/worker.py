"""A process that measures cases for its parent: `python -m peakward.lab.measure.worker`.

It reads requests from one inherited pipe and writes replies to another, so a library's printed output
cannot be taken for an answer. Its keeper (`keeper.py`) ends it, and all that it started, when the
parent ends.
"""

import gc

if __name__ == "__main__":
    # Imports make some 500,000 objects that stay. The garbage collector looks through them again and again as
    # they come, and once more at the end: without it the imports take 3.8 s for 4.8, and the end 0.5 for 1.9.
    gc.disable()

import argparse
import contextlib
import faulthandler
import fcntl
import os
import resource
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

import msgspec

from peakward.lab.levers.module_check import check
from peakward.lab.levers.module_prediction import capture_case
from peakward.lab.levers.prepare import prepare as prepare_case
from peakward.lab.measure import failure, jobs
from peakward.lab.measure.calibration.ceilings import ceilings
from peakward.lab.measure.calibration.rates import rates
from peakward.lab.measure.first_step import profile_first_step
from peakward.lab.measure.memory_record import record_memory
from peakward.lab.measure.messages import (
    Answer,
    CalibrateRequest,
    Captured,
    CaptureRequest,
    Checked,
    CheckRequest,
    Event,
    Failed,
    FirstStepRequest,
    MeasureRequest,
    MemoryRequest,
    NumericsChecked,
    NumericsRequest,
    ProfileRequest,
    RatesMeasured,
    RatesRequest,
    Ready,
    Released,
    Reply,
    Request,
    TurnsRequest,
)
from peakward.lab.measure.profile import profile
from peakward.lab.measure.site import Site
from peakward.lab.numerics.verify import verify_all
from peakward.records.case import DeviceType
from peakward.records.errors import SourceError

Incoming = Request | Failed | None
"""A request, the answer to one that cannot be read, or the end of requests."""

OOM_SCORE = "500"
"""The score of 1000 by which the kernel, where memory runs out, ends the worker before the user's other
processes."""
MOST_FILES = 4096
"""The number of a pipe is just below this, or below the limit of open files. A program that opens files
gets the lowest free numbers, and one that writes to a wrong number writes to a low one."""


def main(prepare: jobs.Prepare = prepare_case, arguments: Sequence[str] | None = None) -> None:
    """Serves until the requests end. Tests pass a `prepare` that fails on purpose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, required=True, metavar="FD")
    parser.add_argument("--replies", type=int, required=True, metavar="FD")
    pipes = parser.parse_args(arguments)
    requests, replies = _out_of_reach(pipes.requests), _out_of_reach(pipes.replies)
    _settle()
    incoming: SimpleQueue[Incoming] = SimpleQueue()
    threading.Thread(
        target=_listen, args=(os.fdopen(requests, "rb"), incoming), daemon=True
    ).start()
    serve(incoming, os.fdopen(replies, "wb"), prepare)


def serve(incoming: "SimpleQueue[Incoming]", replies: BinaryIO, prepare: jobs.Prepare) -> None:
    """Answers requests one after another; ends with them, or after one that failed."""
    own_pid = os.getpid()

    def send(reply: Reply) -> None:
        if os.getpid() != own_pid:
            os._exit(
                1
            )  # A user's code has forked, and this copy of the worker would answer as well.
        replies.write(msgspec.json.encode(reply) + b"\n")
        replies.flush()

    site = Site()
    bench = jobs.Bench(site, prepare, send)
    send(Ready(pid=own_pid))
    while (request := incoming.get()) is not None:
        answer = request if isinstance(request, Failed) else _answer(request, bench)
        send(answer)
        if isinstance(request, Failed) or isinstance(answer, Failed):
            return
        device_type = _device_type(request)
        clean = site.leave(device_type)
        send(Released(clean=clean, held_bytes=site.held_bytes(device_type)))


def _answer(request: Request, bench: jobs.Bench) -> Answer:
    try:
        return _handle(request, bench)
    except BaseException as error:  # noqa: BLE001  a case may raise anything: it is this case's result
        return failure.of_exception(error)


def _handle(request: Request, bench: jobs.Bench) -> Answer:
    match request:
        case MeasureRequest():
            return jobs.measure(request, bench)
        case TurnsRequest():
            return jobs.time_turns(request, bench)
        case NumericsRequest():
            bench.site.enter(request.claims[0].base.device)
            bench.tell(Event(stage="verifying"))
            return NumericsChecked(verdicts=verify_all(request.claims))
        case CheckRequest():
            bench.site.enter(request.case.device)
            bench.tell(Event(stage="building"))
            try:
                return Checked(**check(request.case)._asdict())
            except SourceError as error:
                return Checked(missing=str(error))
        case CaptureRequest():
            bench.tell(Event(stage="building"))
            return Captured(capture=capture_case(request.case))
        case CalibrateRequest():
            bench.site.enter(request.device_type)
            bench.tell(Event(stage="calibrating"))
            return ceilings(request.device_type)
        case RatesRequest():
            bench.site.enter(request.device_type)
            bench.tell(Event(stage="calibrating"))
            return RatesMeasured(rates=rates(request.subject, request.device_type))
        case FirstStepRequest():
            bench.site.enter(request.case.device)
            bench.tell(Event(stage="building"))
            return profile_first_step(request.case, bench.prepare)
        case ProfileRequest():
            return profile(request, bench)
        case MemoryRequest():
            return record_memory(request, bench)


def _device_type(request: Request) -> DeviceType:
    match request:
        case CalibrateRequest() | RatesRequest():
            return request.device_type
        case TurnsRequest():
            return request.cases[0].device
        case NumericsRequest():
            return request.claims[0].base.device
        case (
            CheckRequest()
            | CaptureRequest()
            | MeasureRequest()
            | FirstStepRequest()
            | ProfileRequest()
            | MemoryRequest()
        ):
            return request.case.device


def _out_of_reach(pipe: int) -> int:
    """The pipe under a number that no code uses by accident. No child inherits it: that would keep the
    parent waiting."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if limit == resource.RLIM_INFINITY else min(limit, MOST_FILES)
    moved = fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, most - 16)
    os.close(pipe)
    return moved


def _settle() -> None:
    """Makes this process one that can be lost without a trace."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, encoding="ascii")


def _listen(requests: BinaryIO, incoming: "SimpleQueue[Incoming]") -> None:
    """Queues requests, up to the end of their pipe."""
    with contextlib.suppress(OSError):  # A user's code has closed the pipe.
        for line in requests:
            incoming.put(_read(line))
    incoming.put(None)


def _read(line: bytes) -> Request | Failed:
    try:
        return msgspec.json.decode(line, type=Request)
    except (msgspec.DecodeError, RecursionError) as error:
        said = failure.shorten(str(error))
        return Failed(status="invalid", reason=f"expected a request of plain values, got {said}")


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    main()
