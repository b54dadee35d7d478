"""Lever `cuda-graphs`: forward, backward and optimiser of a step as one launch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MicroBatches = list[tuple[Tensor, Tensor]]
N_WARMUP_STEPS = 3
"""Before capture, on a side stream: lazy initialisation may not happen inside (torch's notes)."""


class CapturedStep:
    """Replays a step on whichever batches it is given, one graph for each of their shapes.

    The graphs share one memory pool: they never run at once, and a step leaves nothing behind
    that the next one reads but parameters, moments and gradients.
    """

    def __init__(self, run: Callable[[MicroBatches], None]) -> None:
        self._run = run
        self._pool: Any = None
        self._graphs: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, MicroBatches]] = {}

    def __call__(self, batches: MicroBatches) -> None:
        """Copy the batches in and replay; capture first where their shape is new."""
        key = tuple(batches[0][0].shape)
        if key not in self._graphs:
            self._graphs[key] = self._capture(batches)
        graph, inputs = self._graphs[key]
        for (ids, targets), (new_ids, new_targets) in zip(inputs, batches, strict=True):
            ids.copy_(new_ids)
            targets.copy_(new_targets)
        graph.replay()

    def _capture(self, batches: MicroBatches) -> tuple[torch.cuda.CUDAGraph, MicroBatches]:
        inputs = [(ids.clone(), targets.clone()) for ids, targets in batches]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(N_WARMUP_STEPS):
                self._run(inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._run(inputs)
        self._pool = graph.pool()
        return graph, inputs
