"""The in-process runner: it measures a live step that cannot be sent to a worker.

The step's fingerprint changes when its code or its parameters do.
"""

import ctypes
import hashlib
import inspect
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from peakward.lab.levers.given_step import Given, GivenStep, schedulers
from peakward.lab.measure import assemble, failure, nvml, probe
from peakward.lab.measure.clock import clock_for
from peakward.lab.measure.crowd import Crowd
from peakward.lab.measure.jobs import checked_loss, doubts
from peakward.lab.measure.memory import CpuMeter, CudaMeter
from peakward.lab.measure.messages import Failed, Measured
from peakward.lab.measure.telemetry import Sampler
from peakward.lab.measure.timer import time_steps
from peakward.lab.models.snapshot import restored
from peakward.records.case import DeviceType, StepCase
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Measurement, Protocol

GIB = 2**30
"""An amount of memory that no CUDA context reaches."""
SHARED = (
    "in process: the allocator's cache, the compiler's and what the step touches beside the model, "
    "the optimizer and the random states were not isolated"
)
UNKNOWN = "in process: no model was given, so what the step trained stays trained"


def measure_step(
    step: Callable[[], object],
    *,
    name: str,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    device: str | torch.device | None = None,
    protocol: Protocol | None = None,
    tokens_per_step: float | None = None,
) -> Measurement:
    """Measures a function that runs one whole step, in this process.

    Afterwards parameters, buffers, gradients, modes, the optimiser, the random states and the schedulers that
    the step's code names are as before, also if the step raises. The verdict's reasons say what could not be
    isolated. If the step returns its loss, the loss is checked and recorded.

    Args:
        step: The step, called without arguments, again and again.
        name: The name in the report.
        model: The model that the step trains; None where it changes nothing that matters.
        optimizer: The optimiser that the step uses.
        device: The device of the step; by default that of the model's first parameter, else the CPU.
        protocol: How to measure. Phases cannot be timed, and the time limit is not enforced.
        tokens_per_step: The tokens of a step, for rates.

    Raises:
        PeakwardError: A fresh process was asked for, or the device is neither cpu nor cuda.
    """
    protocol = protocol or Protocol(phases=False)
    if protocol.fresh_process:
        raise PeakwardError(
            "expected a protocol without fresh_process for a live step, got one with it"
        )
    place = place_of(device, model)
    case = StepCase(
        name=name,
        fingerprint=fingerprint(step, model),
        device=type_of(place),
        tokens_per_step=tokens_per_step,
    )
    watch = assemble.Stopwatch()
    with _current(place):
        gpu = gpu_of(case.device)
        uuid = None if gpu is None else nvml.uuid(gpu)
        environment = probe.environment(case.device, uuid=uuid)
        busy = _busy_reason(gpu)
        with restored(model, optimizer, schedulers(step)):
            live = GivenStep(Given(step=step, model=model), None)
            answer = _measured(live, protocol, case.device, gpu)
    notes = (SHARED,) if model is not None else (SHARED, UNKNOWN)
    return assemble.measurement(
        case,
        protocol,
        environment,
        watch,
        answer,
        doubts=() if busy is None else (busy,),
        notes=notes,
    )


def _measured(
    step: GivenStep,
    protocol: Protocol,
    device_type: DeviceType,
    gpu: nvml.Gpu | None,
) -> Measured | Failed:
    watch = Sampler(gpu) if device_type == "cuda" else Crowd()
    meter = CudaMeter(None, None) if device_type == "cuda" else CpuMeter()
    try:
        with meter:
            timing = time_steps(step.step, protocol, clock_for(device_type), watch=watch)
            loss = checked_loss(step.loss(), timing)
            use = meter.use()
    except Exception as error:  # noqa: BLE001  a step may raise anything: it is the result
        return failure.of_exception(error)
    return Measured(
        run=timing.run,
        doubts=doubts(timing, watch),
        phases=(),
        memory=use,
        telemetry=watch.telemetry(len(timing.run.steps_s)),
        compile=None,
        n_parameters=step.n_parameters,
        loss=loss,
    )


def place_of(device: str | torch.device | None, model: nn.Module | None) -> torch.device:
    """The device on which a live step runs."""
    if device is not None:
        return torch.device(device)
    first = next(model.parameters(), None) if model is not None else None
    return torch.device("cpu") if first is None else first.device


def type_of(device: torch.device) -> DeviceType:
    """
    Raises:
        PeakwardError: neither cpu nor cuda.
    """
    if device.type not in ("cpu", "cuda"):
        raise PeakwardError(f"expected a step on cpu or cuda, got one on {device.type}")
    return "cuda" if device.type == "cuda" else "cpu"


def _current(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def gpu_of(device_type: DeviceType) -> nvml.Gpu | None:
    """torch's current device, as NVML knows it."""
    if device_type == "cpu":
        return None
    if torch.cuda.device_count() == 1:
        return nvml.visible_gpu()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return nvml.gpu_of(f"GPU-{str(properties.uuid).removeprefix('GPU-')}")


def _busy_reason(gpu: nvml.Gpu | None) -> str | None:
    """The reason to call the GPU busy, without samples of utilisation: they would show the caller's own
    work of a moment ago."""
    own = 0 if gpu is None else torch.cuda.memory_reserved() + GIB
    return probe.busy_reason(gpu, own_pids=(os.getpid(),), own_bytes=own, n_samples=0)


def fingerprint(step: Callable[..., object], model: nn.Module | None) -> str:
    """16 digits that depend on the source of the step and of the model's class, and on the content of
    its parameters."""
    digest = hashlib.sha256(source(step).encode())
    if model is not None:
        digest.update(source(type(model)).encode())
        for name, parameter in model.named_parameters():
            digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
            _add_content(digest, parameter)
    return digest.hexdigest()[:16]


def source(thing: object) -> str:
    """The source text; the name where there is none (built in, typed at a prompt, a callable object)."""
    try:
        return inspect.getsource(thing)  # type: ignore[arg-type]
    except (OSError, TypeError):
        kind = thing if hasattr(thing, "__qualname__") else type(thing)
        return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}"


def _add_content(digest: Any, tensor: Tensor) -> None:
    """Adds every byte, read in place: 2 GB/s, without NumPy."""
    host = tensor.detach().cpu().contiguous()
    n_bytes = host.numel() * host.element_size()
    if n_bytes:
        digest.update((ctypes.c_char * n_bytes).from_address(host.data_ptr()))
