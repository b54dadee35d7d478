"""One case of the grid as an engineer would run it: plain torch, nothing of Peakward's around the model."""

import gc
from contextlib import AbstractContextManager, nullcontext
from statistics import fmean, median
from typing import Any

import msgspec
import torch

from against.interleaved import run_turn
from module_grid.cases import GridCase, built, inputs
from peakward.lab.measure.calibration.rates import WIDTH
from peakward.lab.measure.calibration.timing import host_s
from peakward.lab.measure.clock import clock_for

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

    @property
    def call_s(self) -> float | None:
        """Their mean."""
        return None if self.calls_s is None else fmean(self.calls_s)


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
    calls_s, turns = [call_s(device)], []
    for _ in range(N_TURNS):
        turns.append(run_turn("only", arm, clock_for(device), None, turn_s=turn_s / N_TURNS))
        calls_s.append(call_s(device))
    steady, _ = _peaks(on_gpu)
    return Measured(
        step_s=median(each.median_s for each in turns),
        n_steps=sum(each.n_steps for each in turns),
        peak_bytes=peak,
        reserved_bytes=reserved,
        steady_peak_bytes=steady,
        fits={each: _runs_within(arm, each) for each in limits if on_gpu},
        calls_s=tuple(calls_s),
    )


def call_s(device: str) -> float:
    """Seconds of a recorded call on the host now, as a calibration times it."""
    a, b = (torch.rand(WIDTH, WIDTH, device=device) for _ in range(2))
    a.requires_grad_()
    return host_s(lambda: torch.add(a, b), "cuda" if device == "cuda" else "cpu")


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
