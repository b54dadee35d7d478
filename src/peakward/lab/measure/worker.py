"""A process that measures cases for its parent: `python -m peakward.lab.measure.worker`.

It reads requests from one inherited pipe and writes replies to another, so that nothing a library
prints can be taken for an answer. When the requests end, however that comes about, it kills
itself and all that it started.
"""

import argparse
import contextlib
import faulthandler
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
from peakward.lab.numerics.verify import verify
from peakward.records.case import ConfiguredCase, DeviceType

OOM_SCORE = "500"
"""Of 1000: where memory runs out, the kernel takes the worker before the user's other processes."""


def main(prepare: jobs.Prepare = prepare_case, arguments: Sequence[str] | None = None) -> None:
    """Serve until the requests end. Tests pass a `prepare` that fails on purpose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, required=True, metavar="FD")
    parser.add_argument("--replies", type=int, required=True, metavar="FD")
    pipes = parser.parse_args(arguments)
    _settle(pipes.requests, pipes.replies)
    incoming: SimpleQueue[Request] = SimpleQueue()
    threading.Thread(
        target=_listen, args=(os.fdopen(pipes.requests, "rb"), incoming), daemon=True
    ).start()
    serve(incoming, os.fdopen(pipes.replies, "wb"), prepare)


def serve(incoming: "SimpleQueue[Request]", replies: BinaryIO, prepare: jobs.Prepare) -> None:
    """Answer requests one after another; end after one that failed."""

    def send(reply: Reply) -> None:
        replies.write(msgspec.json.encode(reply) + b"\n")
        replies.flush()

    site = Site()
    bench = jobs.Bench(site, prepare, send)
    send(Ready())
    while True:
        request = incoming.get()
        answer = _answer(request, bench)
        send(answer)
        if isinstance(answer, Failed):
            return
        device_type = _device_type(request)
        clean = site.leave(device_type)
        send(Released(clean=clean, held_bytes=site.held_bytes(device_type)))


def _answer(request: Request, bench: jobs.Bench) -> Answer:
    try:
        return _handle(request, bench)
    except Exception as error:  # noqa: BLE001  a case may raise anything: it is this case's result
        status, reason = failure.of_exception(error)
        return Failed(status=status, reason=reason)


def _handle(request: Request, bench: jobs.Bench) -> Answer:
    match request:
        case MeasureRequest():
            return jobs.measure(request, bench)
        case TurnsRequest():
            return jobs.time_turns(request, bench)
        case NumericsRequest():
            bench.site.enter(request.base.device)
            bench.tell(Event(stage="verifying"))
            base, candidate = request.base, request.candidate
            assert isinstance(base, ConfiguredCase)
            assert isinstance(candidate, ConfiguredCase)
            verdict = verify(base, candidate, request.declared)
            return NumericsChecked(verdict=verdict)
        case CheckRequest():
            bench.site.enter(request.case.device)
            bench.tell(Event(stage="building"))
            check(request.case)
            return Checked()
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
            return request.base.device
        case (
            CheckRequest()
            | CaptureRequest()
            | MeasureRequest()
            | FirstStepRequest()
            | ProfileRequest()
            | MemoryRequest()
        ):
            return request.case.device


def _settle(*pipes: int) -> None:
    """Make this process one that can be lost without a trace."""
    for pipe in pipes:
        os.set_inheritable(pipe, False)  # or a grandchild would keep the parent waiting
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, encoding="ascii")


def _listen(requests: BinaryIO, incoming: "SimpleQueue[Request]") -> None:
    """Queue requests; when the pipe closes, which it does even if the parent is killed, die."""
    for line in requests:
        incoming.put(msgspec.json.decode(line, type=Request))
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
