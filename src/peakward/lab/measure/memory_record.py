"""Records every allocation of two steps of a case, with marks of phases and of the innermost module.

On a GPU the kernels of the second step are recorded too. The records are never used for timing.
"""

from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from peakward.kernels.ops.attention.api import in_ranges
from peakward.lab.levers.compilation import Recomputed, is_compiled
from peakward.lab.levers.model_step import ModelStep
from peakward.lab.levers.ranges import Mark, opened_phases, unmarked
from peakward.lab.measure.allocations import CpuRecording, CudaRecording, recording
from peakward.lab.measure.jobs import Bench, built
from peakward.lab.measure.memory import Meter
from peakward.lab.measure.messages import Event, MemoryRecorded, MemoryRequest
from peakward.lab.measure.profile import write
from peakward.lab.measure.timer import collector_paused
from peakward.lab.models.decoder import Decoder, SelfAttention
from peakward.records.case import DeviceType
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Phase
from peakward.records.memory import HeldTensors, MemoryMarks, Purpose

N_STEPS = 2
"""The second step is the first one that finds the optimiser's state."""
TRACE = "memory.trace.json.gz"
"""The trace that is written beside the snapshot, on a GPU."""


class KernelTrace:
    """A trace whose profiler attaches itself at once, so that this slow part lies before the recorded
    step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._profiler = profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True
        )
        self._profiler.prepare_trace()

    def start(self) -> None:
        """Starts recording; the device must have finished all work."""
        torch.cuda.synchronize()
        self._profiler.start_trace()

    def stop(self) -> None:
        """Stops recording, once the device has done all launched work."""
        torch.cuda.synchronize()
        self._profiler.stop_trace()

    def write(self) -> None:
        """Writes the trace, gzipped."""
        write(self._profiler, self.path)


def record_memory(request: MemoryRequest, bench: Bench) -> MemoryRecorded:
    """Records the case from its building to the end of its second step, and writes the snapshot and, on
    a GPU, that step's trace.

    Raises:
        PeakwardError: The case replays a graph, whose steps allocate nothing, or cannot be built here.
    """
    case = request.case
    if case.configuration.cuda_graphs:
        raise PeakwardError(
            "expected a case whose steps allocate, got cuda-graphs: record it without that lever"
        )
    bench.site.enter(case.device)
    recorded = recording(case.device)
    with recorded, built(case, bench) as (prepared, meter):
        assert isinstance(prepared, ModelStep)
        bench.tell(Event(stage="recording memory", total=N_STEPS))
        noted = _Noted(recorded, case.device)
        trace = KernelTrace(Path(request.path).with_name(TRACE)) if case.device == "cuda" else None
        model = prepared.model
        with collector_paused(), told_modules(model, noted.module), told_casts(model, noted.cast):
            for _ in range(N_STEPS - 1):
                noted.step(prepared)
            noted.last_step(prepared, trace)
        noted.end(meter)
        recorded.stop()
    recorded.write(Path(request.path))
    if trace is not None:
        trace.write()
    return MemoryRecorded(
        path=request.path,
        marks=noted.marks(),
        trace=None if trace is None else str(trace.path),
    )


class _Noted:
    """Marks by their numbers, until the recording tells their positions."""

    def __init__(self, recorded: CudaRecording | CpuRecording, device: DeviceType) -> None:
        self._recorded, self._device = recorded, device
        self._steps: list[int] = []
        self._phases: list[tuple[int, Phase]] = []
        self._modules: list[tuple[int, str]] = []
        self._held: list[tuple[int, Purpose, tuple[int, ...]]] = []
        self._cleared: tuple[int, int] = (0, 0)
        self._traced: tuple[int, int] | None = None
        self._peak_bytes: int | None = None

    def module(self, path: str) -> None:
        self._modules.append((self._recorded.mark(), path))

    def cast(self, address: int) -> None:
        self._held.append((self._recorded.mark(), "weight_casts", (address,)))

    def phase(self, phase: Phase | None) -> None:
        if phase is not None:
            self._phases.append((self._recorded.mark(), phase))

    def last_step(self, prepared: ModelStep, trace: KernelTrace | None) -> None:
        """Runs the last step, traced where that is possible, in ranges that put its phases on the
        trace's clock."""
        if trace is None:
            self.step(prepared)
            return
        trace.start()
        first = self._recorded.mark()
        try:
            with opened_phases("step") as opened:
                self.step(prepared, opened)
        finally:
            self._traced = (first, self._recorded.mark())
            trace.stop()

    def step(self, prepared: ModelStep, opened: Mark = unmarked) -> None:
        """Runs one step and notes the memory held after it."""

        def begins(phase: Phase | None) -> None:
            opened(phase)
            self.phase(phase)

        self._steps.append(self._recorded.mark())
        prepared.step(begins)
        after = self._recorded.mark()
        self._held += [
            (after, purpose, _addresses(tensors, self._device))
            for purpose, tensors in prepared.held().items()
        ]
        self._steps.append(after)

    def end(self, meter: Meter) -> None:
        """Lets go of workspaces and reads torch's count, while the case still holds its tensors."""
        before = self._recorded.mark()
        if self._device == "cuda":
            self._peak_bytes = meter.use().peak_allocated_bytes
            torch._C._cuda_clearCublasWorkspaces()
        self._cleared = (before, self._recorded.mark())

    def marks(self) -> MemoryMarks:
        """The marks with their positions, once the recording has ended."""
        at = self._recorded.positions()
        return MemoryMarks(
            begin=at[self._steps[-2]],
            end=at[self._steps[-1]],
            phases=tuple((at[mark], phase) for mark, phase in self._phases),
            modules=tuple((at[mark], path) for mark, path in self._modules),
            held=tuple(
                HeldTensors(purpose=purpose, at=at[mark], addresses=addresses)
                for mark, purpose, addresses in self._held
            ),
            cleared=(at[self._cleared[0]], at[self._cleared[1]]),
            peak_allocated_bytes=self._peak_bytes,
            traced=None if self._traced is None else (at[self._traced[0]], at[self._traced[1]]),
        )


def _addresses(tensors: Iterable[Tensor], device: DeviceType) -> tuple[int, ...]:
    found = (each.untyped_storage().data_ptr() for each in tensors if each.device.type == device)
    return tuple(dict.fromkeys(each for each in found if each))


@contextmanager
def told_casts(model: Decoder, tell: Callable[[int], None]) -> Iterator[None]:
    """Calls `tell` with the address of every copy of a parameter in another type that a module makes,
    in the forward pass and where a block is recomputed.

    Compiled modules are not reported: their casts are part of their kernels. Only a module's own
    forward pass is watched. While a mode is on, torch does not add up gradients in place, so a watched
    backward pass would allocate memory that a plain one does not.
    """
    weights = frozenset(address(each) for each in model.parameters())
    with ExitStack() as changes:
        for _, module in uncompiled(model, ""):
            if any(True for _ in module.parameters(recurse=False)):
                changes.enter_context(_watched(module, _Casts(weights, tell)))
        yield


def address(tensor: Tensor) -> int:
    """The address of its storage."""
    return tensor.untyped_storage().data_ptr()


@contextmanager
def _watched(module: nn.Module, casts: TorchDispatchMode) -> Iterator[None]:
    def before(*_arguments: Any) -> None:
        casts.__enter__()

    def after(*_arguments: Any) -> None:
        casts.__exit__(None, None, None)

    hooks = (
        module.register_forward_pre_hook(before),
        module.register_forward_hook(after, always_call=True),
    )
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


class _Casts(TorchDispatchMode):
    """Runs every operator as it is, and reports copies whose source is a weight."""

    def __init__(self, weights: Set[int], tell: Callable[[int], None]) -> None:
        super().__init__()
        self._weights, self._tell = weights, tell

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and address(args[0]) in self._weights:
            self._tell(address(made))
        return made


@contextmanager
def told_modules(model: Decoder, tell: Callable[[str], None]) -> Iterator[None]:
    """Calls `tell` with the path of the innermost running module whenever that changes, and with ""
    where none runs. Parts of naive attention end a path as modules do.

    A block that is recomputed in the backward pass runs again, though torch may end it by an exception.
    Compiled modules, and those inside them, are not reported: a hook would be compiled too.
    """
    running: list[str] = []

    def enter(path: str) -> None:
        running.append(path)
        tell(path)

    def leave() -> None:
        running.pop()
        tell(running[-1] if running else "")

    @contextmanager
    def opened(part: str) -> Iterator[None]:
        # Part "attention.softmax" belongs to the module whose path ends with "attention".
        enter(".".join((running[-1], *part.split(".")[1:])))
        try:
            yield
        finally:
            leave()

    with ExitStack() as changes:
        for path, module in uncompiled(model, ""):
            if path:
                changes.enter_context(_hooked(module, path, enter, leave))
            if isinstance(module, SelfAttention):
                changes.enter_context(_in_ranges(module, opened))
        yield


def uncompiled(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules that are not compiled, with their paths. A block has its number in the model,
    recomputed or not."""
    if is_compiled(module):
        return
    yield path, module
    if isinstance(module, Decoder):
        yield from _numbered(module)
    for name, child in module.named_children():
        if isinstance(module, Decoder | Recomputed) and name == "blocks":
            continue
        yield from uncompiled(child, f"{path}.{name}" if path else name)


def _numbered(model: Decoder) -> Iterator[tuple[str, nn.Module]]:
    number = 0
    for each in model.blocks:
        inside = [each]
        if isinstance(each, Recomputed) and not is_compiled(each):
            inside = list(each.blocks)
        for block in inside:
            yield from uncompiled(block, f"blocks.{number}")
            number += 1


@contextmanager
def _hooked(
    module: nn.Module, path: str, enter: Callable[[str], None], leave: Callable[[], None]
) -> Iterator[None]:
    def before(*_arguments: Any) -> None:
        enter(path)

    def after(*_arguments: Any) -> None:
        leave()

    hooks = (
        module.register_forward_pre_hook(before),
        module.register_forward_hook(after, always_call=True),
    )
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


@contextmanager
def _in_ranges(module: SelfAttention, opened: Any) -> Iterator[None]:
    plain = module.attention
    module.attention = in_ranges(plain, opened)
    try:
        yield
    finally:
        module.attention = plain
