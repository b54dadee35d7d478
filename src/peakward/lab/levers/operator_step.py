"""One operator alone, as a step."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from peakward.lab.levers.marks import Mark, unmarked
from peakward.lab.levers.ranges import opened
from peakward.lab.ops.attention.api import implementation, in_ranges
from peakward.records.case import OperatorCase

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


class AttentionStep:
    """Causal attention, and where the pass says so its backward under a random gradient."""

    n_parameters = None
    optimizer = None
    model = None
    times_phases = True
    uncaptured = None

    def __init__(self, case: OperatorCase) -> None:
        shape = (case.batch_size, case.n_heads, case.seq_len, case.head_dim)
        generator = torch.Generator(case.device).manual_seed(case.seed)
        drawn = torch.randn((4, *shape), generator=generator, device=case.device)
        q, k, v, self._gradient = drawn.to(DTYPES[case.precision]).unbind(0)
        self._trains = case.pass_ == "forward_backward"
        self._inputs = [each.clone().requires_grad_(self._trains) for each in (q, k, v)]
        attention = implementation(case.attention)
        if case.compile != "none":
            mode = None if case.compile == "default" else case.compile
            attention = torch.compile(attention, mode=mode)
        self._attention = attention
        self.output: Tensor | None = None

    def step(self, mark: Mark = unmarked) -> None:
        """One forward, or forward and backward."""
        self.output = None
        mark("forward")
        output = self._attention(*self._inputs, window=None, bias=None)
        if self._trains:
            for each in self._inputs:
                each.grad = None
            mark("backward")
            output.backward(self._gradient)
        self.output = output.detach()
        mark(None)

    @contextmanager
    def ranged(self) -> Iterator[None]:
        """While it lasts, steps open the ranges of `ranges` around attention and in it."""
        plain = self._attention
        self._attention = in_ranges(plain, opened)
        try:
            yield
        finally:
            self._attention = plain

    def loss(self) -> float | None:
        """An operator has none."""
        return None
