"""A pass of a model over its micro-batches as a configuration has it, step after step.

Lever `cuda-graphs` makes forward, backward and optimiser of a step one launch.
"""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from peakward.lab.data.feed import Feed, MicroBatches, Resident
from peakward.lab.levers import precision
from peakward.lab.levers.ranges import Mark, unmarked
from peakward.levers import catalogue
from peakward.records.case import ConfiguredCase
from peakward.records.measurement import Feeding, Outputs
from peakward.records.memory import Purpose

N_BATCHES = 8
"""Steps before the batches repeat: enough that no step finds its ids in the cache."""


class ConfiguredStep(ABC):
    """One pass over the next micro-batches, again and again.

    Args:
        case: whose configuration says how; the model has what it sets inside the model already.
        model: on the case's device.
        source: gives each step its micro-batches.
    """

    def __init__(self, case: ConfiguredCase, model: nn.Module, source: Feed | Resident) -> None:
        configuration = case.configuration
        self.case, self.model = case, model
        self.n_parameters = sum(each.numel() for each in model.parameters())
        self.times_phases = not configuration.cuda_graphs
        self.output: Tensor | None = None
        """The last step's loss, or its logits where it takes none."""
        self.optimizer: torch.optim.Optimizer | None = None
        if case.workload.pass_ == "train_step":
            self.optimizer = catalogue.function("optimizer", configuration)(
                model, capturable=configuration.cuda_graphs
            )
        model.train(case.workload.trains)
        self.scaler = torch.amp.GradScaler(
            case.device, enabled=configuration.precision == "fp16-mixed"
        )
        self._source = source
        self._batches: MicroBatches | None = None
        self._captured = (
            CapturedStep(self._run, self._rehearse) if configuration.cuda_graphs else None
        )

    @abstractmethod
    def _output_of(self, batch: Sequence[Tensor]) -> Tensor:
        """The forward pass of one micro-batch, without a loss."""

    @abstractmethod
    def _loss_of(self, batch: Sequence[Tensor]) -> Tensor:
        """The forward pass and the loss of one micro-batch."""

    @property
    @abstractmethod
    def blocks(self) -> Sequence[nn.Module]:
        """The model's repeated blocks, in order; empty of a model that repeats none."""

    def step(self, mark: Mark = unmarked) -> None:
        """One whole step: all micro-batches and the optimiser."""
        self._batches = self._source()
        self.output = None  # Or the logits of two steps would be held at once.
        self.output = self._output(self._batches, mark)

    def on(self, batches: MicroBatches) -> Tensor:
        """One whole step on these micro-batches, launched operator by operator."""
        return self._run(batches)

    def look(self) -> None:
        """A forward pass on the last step's micro-batches that changes nothing. It is launched operator by
        operator, so that hooks of the model's parts are called whatever the step is compiled or captured
        as."""
        assert self._batches is not None
        with torch.compiler.set_stance("force_eager"):
            self._forward(self._batches, unmarked)

    def batches(self) -> Iterator[MicroBatches]:
        """The micro-batches of one step after the other, without end."""
        while True:
            yield self._source()

    def _output(self, batches: MicroBatches, mark: Mark) -> Tensor:
        return self._run(batches, mark) if self._captured is None else self._captured(batches)

    @property
    def uncaptured(self) -> Callable[[Mark], None] | None:
        """Where steps are replayed from a graph, one on a batch that is not, and marks its
        phases; None where they are not, or where lengths vary and with them what a step launches."""
        if self._captured is None or self.case.workload.varying_seq_lens:
            return None
        return self._run_uncaptured

    @abstractmethod
    def ranged(self) -> AbstractContextManager[None]:
        """While it lasts, steps open the ranges of `ranges` inside the model."""

    def loss(self) -> float | None:
        """The loss of the last step, for which it waits; None where a step has no loss."""
        if self.output is None or not self.case.workload.trains:
            return None
        return float(self.output)

    def outputs(self) -> Outputs | None:
        """The outputs of the last step, and whether one more on its batches gives the same. None for a
        pass with a loss, which is looked at instead: a step of training gives another at each call."""
        if self.output is None or self._batches is None or self.case.workload.trains:
            return None
        found, self.output = fingerprint(self.output), None
        again = fingerprint(self._output(self._batches, unmarked))
        return Outputs(
            n_values=found.n_values, n_nonfinite=found.n_nonfinite, repeats=found == again
        )

    def held_for_backward_bytes(self) -> int | None:
        """None: of a model, recorded memory tells what is held and for what."""
        return None

    def gradients(self) -> tuple[Tensor, ...]:
        """The gradients of the last step, one for each parameter, without the loss scale."""
        scale = 1.0 if self.optimizer is not None else self.scaler.get_scale()
        found = (each.grad for each in self.model.parameters())
        return tuple(each / scale for each in found if each is not None)

    def held(self) -> dict[Purpose, list[Tensor]]:
        """The tensors that it holds between steps, by what they are for."""
        parameters = list(self.model.parameters())
        state = () if self.optimizer is None else self.optimizer.state.values()
        moments = [each for kept in state for each in kept.values() if isinstance(each, Tensor)]
        return {
            "parameters": [*parameters, *self.model.buffers()],
            "gradients": [each.grad for each in parameters if each.grad is not None],
            "optimizer_state": moments,
            "inputs": self._source.held(),
            "cache": [],
        }

    def rewind(self) -> None:
        """Take the batches from the first one again."""
        self._source.rewind()

    def feeding(self, n_steps: int) -> Feeding | None:
        """The times of feeding the last `n_steps` steps; None where batches lie on the device."""
        return self._source.use(n_steps) if isinstance(self._source, Feed) else None

    def release(self) -> None:
        """Let go of every tensor and graph, whoever still holds the step."""
        self.__dict__.clear()

    def _run_uncaptured(self, mark: Mark) -> None:
        self._run(self._source.again(), mark)

    def _run(self, batches: MicroBatches, mark: Mark = unmarked) -> Tensor:
        if self.case.configuration.compile in ("reduce-overhead", "max-autotune"):
            torch.compiler.cudagraph_mark_step_begin()
        if self.case.workload.trains:
            output = self._backward(batches, mark)
            self._optimize(mark)
        else:
            output = self._forward(batches, mark)
        mark(None)
        return output

    def _rehearse(self, batches: MicroBatches) -> None:
        """A step that changes nothing, but after which a capture finds everything in place."""
        if not self.case.workload.trains:
            self._forward(batches, unmarked)
            return
        self._backward(batches, unmarked)
        if self.optimizer is not None and not self.optimizer.state:
            set_up(self.optimizer)
        self.model.zero_grad(set_to_none=True)

    def _forward(self, batches: MicroBatches, mark: Mark) -> Tensor:
        with torch.no_grad():
            for batch in batches:
                mark("forward")
                with self._autocast():
                    output = self._output_of(batch)
        return output

    def _backward(self, batches: MicroBatches, mark: Mark) -> Tensor:
        self.model.zero_grad(set_to_none=True)
        losses = []
        for batch in batches:
            mark("forward")
            with self._autocast():
                loss = self._loss_of(batch) / len(batches)
            mark("backward")
            self.scaler.scale(loss).backward()
            losses.append(loss.detach())
        return sum(losses[1:], losses[0])

    def _optimize(self, mark: Mark) -> None:
        if self.optimizer is None:
            return
        mark("optimizer")
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _autocast(self) -> AbstractContextManager[None]:
        return precision.autocast(self.case.configuration.precision, self.case.device)


N_REHEARSALS = 3
"""Before capture, on a side stream: lazy initialisation may not happen inside (torch's notes)."""


class CapturedStep:
    """Replays a step on whichever batches it is given, one graph for each of their shapes.

    `run` is the step, and gives its output; `rehearse` does what a step does first once, but
    leaves parameters and optimiser state as they are, so that n calls are n steps.

    The graphs share one memory pool: they never run at once, and a step leaves nothing behind
    that the next one reads but parameters, moments and its output. The gradients that the
    parameters hold are those of the graph captured last.
    """

    def __init__(
        self, run: Callable[[MicroBatches], Tensor], rehearse: Callable[[MicroBatches], None]
    ) -> None:
        self._run, self._rehearse = run, rehearse
        self._pool: Any = None
        self._graphs: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, MicroBatches, Tensor]] = {}

    def __call__(self, batches: MicroBatches) -> Tensor:
        """Copy the batches in and replay; capture first where their shape is new."""
        key = tuple(batches[0][0].shape)
        if key not in self._graphs:
            self._graphs[key] = self._capture(batches)
        graph, inputs, output = self._graphs[key]
        for held, given in zip(inputs, batches, strict=True):
            for mine, theirs in zip(held, given, strict=True):
                mine.copy_(theirs)
        graph.replay()
        return output

    def _capture(self, batches: MicroBatches) -> tuple[torch.cuda.CUDAGraph, MicroBatches, Tensor]:
        inputs = [tuple(each.clone() for each in batch) for batch in batches]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(N_REHEARSALS):
                self._rehearse(inputs)
        torch.cuda.current_stream().wait_stream(side)
        # What an earlier step left in a cycle keeps its autograd graph, whose gradients are summed on the
        # stream that it was made on; a capture may not wait for another stream.
        gc.collect()
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on: NCCL's watchdog asks for events, a loader pins memory.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = self._run(inputs)
        self._pool = graph.pool()
        return graph, inputs, output


def set_up(optimizer: torch.optim.Optimizer) -> None:
    """Make the optimiser's state and load its kernels: a step of rate 0, then a state of zeros.

    The parameters must hold gradients. Made inside a capture, the state would be made anew, and
    so zeroed, by every replay.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()


_AT_ONCE = 1 << 20
"""Values: 8 MiB as 64-bit integers, where logits of 4 × 2048 × 128,256 would be 8 GiB."""
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Fingerprint(NamedTuple):
    """Equal for equal bits; of tensors that differ, equal by chance alone."""

    n_values: int
    n_nonfinite: int
    sums: tuple[int, ...]
    """A sum for each stretch of values: their bits times odd numbers, modulo 2^64. A change of one value
    always shows, and so does an exchange of two that differ by less than the whole type."""


def fingerprint(values: Tensor) -> Fingerprint:
    """Returns the fingerprint of values of any shape and type; waits for the device."""
    stretches = values.detach().reshape(-1).split(_AT_ONCE)
    sums, n_nonfinite = [], 0
    for each in stretches:
        n_nonfinite += int(each.isfinite().logical_not().sum())
        real = torch.view_as_real(each).reshape(-1) if each.is_complex() else each.contiguous()
        bits = real.view(_BITS[real.element_size()]).to(torch.int64)
        odd = 2 * torch.arange(len(bits), device=bits.device) + 1
        sums.append(int((bits * odd).sum()))
    return Fingerprint(values.numel(), n_nonfinite, tuple(sums))
