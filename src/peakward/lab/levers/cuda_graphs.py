"""Lever `cuda-graphs`: forward, backward and optimiser of a step as one launch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from peakward.lab.data.resident import MicroBatches

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
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
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
