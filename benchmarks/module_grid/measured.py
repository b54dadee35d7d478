"""One case of the grid as an engineer would run it: plain torch, nothing of Peakward's around the model."""

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import fmean, median
from typing import Any

import msgspec
import torch

from against.interleaved import run_turn
from module_grid.cases import GridCase, built, inputs
from peakward.lab.measure.calibration.rates import WIDTH
from peakward.lab.measure.calibration.timing import Call, backward_host_s, host_s
from peakward.lab.measure.clock import clock_for
from peakward.records.calibration import Launch, LaunchCost, Rates
from peakward.records.case import DeviceType

N_WARMUP = 3
N_TURNS = 4
"""Of timed steps, with a call timed before, between and after them: between the two ends of a case's steps
a host changed its speed by a factor of up to 1.55 (H200, 28 November)."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the device did."""

    step_s: float
    """The median over turns of the median of steps that follow one another."""
    n_steps: int
    peak_bytes: int | None
    """Allocated at most, from building the model on. None on a CPU."""
    reserved_bytes: int | None
    steady_peak_bytes: int | None
    """Allocated at most once all is compiled and the optimizer's state is there."""
    fits: dict[int, bool]
    """For limits of the allocator, in bytes: whether two steps ran."""
    calls_s: tuple[float, ...] | None = None
    """A recorded call on the host before, between and after the turns of timed steps; before and after alone,
    or None, in older files."""
    backward_calls_s: tuple[float, ...] | None = None
    """Of a train step, just behind each of these: the same call in the thread that carries a backward pass
    out. None in older files."""

    @property
    def launches(self) -> Rates:
        """The means of both, as a calibration has them."""
        timed: dict[Launch, tuple[float, ...] | None] = {
            "autograd": self.calls_s,
            "autograd in a backward pass": self.backward_calls_s,
        }
        return Rates(
            launches=tuple(
                LaunchCost(side="host", operation=operation, call_s=fmean(calls_s))
                for operation, calls_s in timed.items()
                if calls_s is not None
            )
        )


class Step:
    """The model with its optimizer, torch's defaults."""

    n_parameters = 0

    def __init__(self, case: GridCase, device: str) -> None:
        self._case, self._device = case, device
        self.model = built(case, device)
        self._given: dict[str, Any] = inputs(case, device)
        self._optimizer = None
        if case.pass_ == "train_step":
            # foreach is torch's default on a GPU.
            self._optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True)

    def step(self) -> None:
        """Forward; where it trains also backward and the update."""
        self.passes()
        if self._optimizer is not None:
            self._optimizer.step()

    def passes(self) -> None:
        """The step without the update."""
        if self._optimizer is None:
            with torch.no_grad(), self._mixed():
                self.model(**self._given)
            return
        self._optimizer.zero_grad(set_to_none=True)
        with self._mixed():
            loss = self.model(**self._given).loss
        loss.backward()

    def loss(self) -> None:
        """Of no interest here."""

    def forget(self) -> None:
        """Lets go of gradients and of the optimizer's state."""
        if self._optimizer is not None:
            self._optimizer.zero_grad(set_to_none=True)
            self._optimizer.state.clear()

    def _mixed(self) -> AbstractContextManager[Any]:
        dtype = self._case.autocast
        return nullcontext() if dtype is None else torch.autocast(self._device, dtype)


def measured(case: GridCase, device: str, limits: tuple[int, ...], turn_s: float) -> Measured:
    """The case built, warmed up, timed, and run again under each limit of the allocator."""
    release()
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    arm = Step(case, device)
    for _ in range(N_WARMUP):
        arm.step()
    peak, reserved = _peaks(on_gpu)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    timers = (host_s, backward_host_s) if case.pass_ == "train_step" else (host_s,)
    beside, turns = [calls_s(device, timers)], []
    for _ in range(N_TURNS):
        turns.append(run_turn("only", arm, clock_for(device), None, turn_s=turn_s / N_TURNS))
        beside.append(calls_s(device, timers))
    steady, _ = _peaks(on_gpu)
    here_s, *in_backward_s = zip(*beside, strict=True)
    return Measured(
        step_s=median(each.median_s for each in turns),
        n_steps=sum(each.n_steps for each in turns),
        peak_bytes=peak,
        reserved_bytes=reserved,
        steady_peak_bytes=steady,
        fits={each: _runs_within(arm, each) for each in limits if on_gpu},
        calls_s=here_s,
        backward_calls_s=in_backward_s[0] if in_backward_s else None,
    )


def calls_s(device: str, timers: Sequence[Callable[[Call, DeviceType], float]]) -> list[float]:
    """Seconds of a recorded call on the host now, as a calibration times it: by each of its timers."""
    a, b = (torch.rand(WIDTH, WIDTH, device=device) for _ in range(2))
    a.requires_grad_()
    return [
        timer(lambda: torch.add(a, b), "cuda" if device == "cuda" else "cpu") for timer in timers
    ]


def warm(case: GridCase, device: str) -> None:
    """Fills Inductor's cache on disk with the case's kernels. Others do the same on the GPU at that time:
    what optimizers keep would not fit."""
    Step(case, device).passes()


def release() -> None:
    """Gives back what earlier cases held, cuBLAS's workspaces too."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def _peaks(on_gpu: bool) -> tuple[int | None, int | None]:
    if not on_gpu:
        return None, None
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def _runs_within(arm: Step, limit_bytes: int) -> bool:
    total = torch.cuda.get_device_properties(0).total_memory
    arm.forget()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total))
    try:
        for _ in range(2):
            arm.step()
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        return False
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return True
