"""Where the programs run: a step loop under torch's profiler, or a case by Peakward's own runner."""

import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, schedule
from torch.profiler import profile as profiler

import peakward as pw
from faults.reading import of_trace
from faults.records import Seen
from peakward.hardware import devices
from peakward.lab.measure import in_process
from peakward.lab.measure.live_module import LiveWorkers, live_case
from peakward.lab.measure.profile import write
from peakward.lab.measure.sweep import Sweep
from peakward.lab.models.given_module import given
from peakward.records.case import DeviceType, ModelCase, Precision
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Protocol
from peakward.records.memory import CaseMemory
from peakward.records.profile import CaseProfile
from peakward.store.database import Store
from peakward.tune.memory_records import MemoryRecorder
from peakward.tune.profiles import Profiler

WARMUP_STEPS = 3
TIMED_STEPS = 7
PROFILED_STEPS = 3
TIMEOUT_S = 300.0
PROTOCOL = Protocol(warmup_steps=3, min_steps=5, max_steps=20, max_timed_s=3.0, phases=False)

WATCHED_STEPS = 120
WATCHED_EVERY = 25

Step = Callable[[], object]


class Loop(NamedTuple):
    """A live loop: its batches without end, and what is done with each."""

    batches: Iterator[Tensor]
    step: Callable[[Tensor], object]


class Lab:
    """One device, the runner of cases, and where traces are kept (None: nowhere)."""

    def __init__(self, device: DeviceType, sweep: Sweep, store: Store, keep: Path | None) -> None:
        self.device = device
        torch.set_num_threads(1)
        self._sweep, self._store, self._keep = sweep, store, keep
        here = sweep.environment
        found = devices.match(here.device_name, here.device_memory_bytes)
        self.device_key = None if found is None or device == "cpu" else found.key

    def traced(self, build: Callable[[], Step], *, name: str, with_stack: bool = False) -> Seen:
        """The trace of a few steps, read as `peakward trace` reads it; the step is timed before."""
        torch.manual_seed(0)
        step = build()
        for _ in range(WARMUP_STEPS):
            step()
        step_s = self._timed(step)
        with tempfile.TemporaryDirectory(prefix="peakward-") as scratch:
            path = Path(scratch if self._keep is None else self._keep) / f"{name}.json.gz"
            write(profiled(step, self.device, with_stack=with_stack), path)
            seen = of_trace(path)
        del step
        self.release()
        return Seen(
            profile=seen.profile, n_steps=seen.n_steps, device=self.device_key, step_s=step_s
        )

    def watched(self, loop: Loop) -> Seen:
        """What `pw.watch` saw of so many steps."""
        steps = count(1)
        with pw.watch(every=WATCHED_EVERY, on_findings=lambda _found: None) as watched:
            for batch in watched.batches(loop.batches):
                loop.step(batch)
                watched.step()
                if next(steps) == WATCHED_STEPS:
                    break
        times, profile = watched.times, watched.profile
        self.release()
        return Seen(
            profile=profile,
            n_steps=None if profile is None else profile.n_steps,
            loop=times,
            device=self.device_key,
            step_s=times.total_s / times.n_steps,
        )

    def measured(self, step: Step, *, name: str, protocol: Protocol) -> Seen:
        """A live step by the in-process runner: its times and its memory."""
        found = in_process.measure_step(step, name=name, device=self.device, protocol=protocol)
        self.release()
        _must_run(found.status, found.reason)
        return Seen(measurement=found, device=self.device_key)

    def module(self, module: nn.Module, batch: Tensor, *, precision: Precision) -> Seen:
        """A module whose output is its loss, as `pw.run(module, batch)` measures it; that its loss is not
        finite is a result."""
        taken = given((module, batch))
        case = live_case(taken, "train_step")
        how = msgspec.structs.replace(case.configuration, precision=precision)
        case = msgspec.structs.replace(case, configuration=how)
        with LiveWorkers(taken) as workers:
            made = workers.measure(case, PROTOCOL)
        self.release()
        if made.status != "invalid":
            _must_run(made.status, made.reason)
        return Seen(module=case, measurement=made, device=self.device_key)

    def case(
        self,
        case: ModelCase,
        *,
        profiled: bool = True,
        recorded: bool = False,
        protocol: Protocol = PROTOCOL,
    ) -> Seen:
        """A case as `peakward run` sees its baseline. That it ran out of memory is a result."""
        made = self._sweep.measure(case, protocol)
        ran = made.status == "ok"
        if made.status not in ("ok", "oom"):
            _must_run(made.status, made.reason)
        profile = self._profile(case) if ran and profiled else None
        return Seen(
            case=case,
            measurement=made,
            profile=None if profile is None else profile.profile,
            n_steps=None if profile is None else profile.n_steps,
            memory=self._memory(case) if ran and recorded else None,
            device=self.device_key,
            step_s=None if made.summary is None else made.summary.median_s.estimate,
        )

    def _profile(self, case: ModelCase) -> CaseProfile:
        profiles = Profiler(self._sweep.workers, self._store, self._sweep.environment.key)
        found = profiles.profile(case, timeout_s=TIMEOUT_S)
        if not isinstance(found, CaseProfile):
            raise PeakwardError(found.note)
        return found

    def _memory(self, case: ModelCase) -> CaseMemory:
        recorder = MemoryRecorder(self._sweep.workers, self._store, self._sweep.environment.key)
        found = recorder.record(case, timeout_s=TIMEOUT_S)
        if not isinstance(found, CaseMemory):
            raise PeakwardError(found.note)
        return found

    def _timed(self, step: Step) -> float:
        """On a CPU the least processor time of several steps, which other work on a shared machine
        disturbs least; on a GPU the mean of a loop that nothing stops, since the host may be ahead."""
        if self.device == "cpu":
            return min(_processor_s(step) for _ in range(TIMED_STEPS))
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(TIMED_STEPS):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / TIMED_STEPS

    def release(self) -> None:
        """What the last program left: what was compiled for it, too."""
        torch.compiler.reset()
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()


def _processor_s(step: Step) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def profiled(step: Step, device: DeviceType, *, with_stack: bool = False) -> profiler:
    """Steps under torch's profiler, each marked as a step."""
    kinds = [ProfilerActivity.CPU]
    if device == "cuda":
        kinds.append(ProfilerActivity.CUDA)
    # Of the warm-up nothing is kept: the first step after the profiler has attached is slow.
    plan = schedule(wait=0, warmup=2, active=PROFILED_STEPS, repeat=1)
    with profiler(
        activities=kinds, schedule=plan, record_shapes=True, with_stack=with_stack
    ) as running:
        for _ in range(2 + PROFILED_STEPS):
            step()
            running.step()
    return running


def _must_run(status: str, reason: str | None) -> None:
    if status != "ok":
        raise PeakwardError(f"expected a program that runs, got {status}: {reason}")
