"""One operator alone, or a small piece of code, as a step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._functorch import config as functorch

from peakward.kernels.ops.attention.api import implementation, in_ranges
from peakward.lab.levers.ranges import Mark, opened, unmarked
from peakward.lab.micro.subjects import build
from peakward.records.case import MicroCase, OperatorCase

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


class AttentionStep:
    """Causal attention, its backward under a random gradient, or both, as the pass says."""

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
        self._pass = case.pass_
        self._trains = case.pass_ != "forward"
        self._inputs = [each.clone().requires_grad_(self._trains) for each in (q, k, v)]
        attention = implementation(case.attention)
        if case.compile != "none":
            mode = None if case.compile == "default" else case.compile
            attention = torch.compile(attention, mode=mode)
        self._attention = attention
        self._kept: Tensor | None = None
        """The result whose graph every step of `backward` goes through."""
        self.output: Tensor | None = None

    def step(self, mark: Mark = unmarked) -> None:
        """One forward, one backward, or both."""
        if self._pass == "backward":
            self._step_backward(mark)
            return
        self.output = None
        mark("forward")
        output = self._attention(*self._inputs, window=None, bias=None)
        if self._trains:
            self._forget_gradients()
            mark("backward")
            output.backward(self._gradient)
        self.output = output.detach()
        mark(None)

    def _step_backward(self, mark: Mark) -> None:
        output = self._kept
        if output is None:
            # Compiled code may otherwise write over what it saved: then a graph serves once.
            with functorch.patch(donated_buffer=False):
                output = self._kept = self._attention(*self._inputs, window=None, bias=None)
        self._forget_gradients()
        mark("backward")
        output.backward(self._gradient, retain_graph=True)
        self.output = output.detach()
        mark(None)

    def _forget_gradients(self) -> None:
        for each in self._inputs:
            each.grad = None

    @contextmanager
    def ranged(self) -> Iterator[None]:
        """While it lasts, steps open the ranges of `ranges` around attention and in it."""
        plain = self._attention
        self._attention, self._kept = in_ranges(plain, opened), None
        try:
            yield
        finally:
            self._attention, self._kept = plain, None

    def loss(self) -> float | None:
        """An operator has none."""
        return None

    def held_for_backward_bytes(self) -> int | None:
        """`held_bytes` of one forward pass; None where no gradient is computed."""
        if not self._trains:
            return None
        self.output = self._kept = None
        self._forget_gradients()
        return held_bytes(
            lambda: self._attention(*self._inputs, window=None, bias=None), self._inputs
        )


def held_bytes(forward: Callable[[], Tensor], inputs: Sequence[Tensor]) -> int:
    """Bytes that the forward pass leaves, its result included and its inputs not.

    On CUDA what the allocator has more of afterwards, rounded as it rounds; on a CPU the storages
    that autograd saved, each once, and the result's.
    """
    if inputs[0].is_cuda:
        return _allocated_bytes(forward)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        kept.append(forward())
    sizes = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in kept}
    for each in inputs:
        sizes.pop(each.untyped_storage().data_ptr(), None)
    return sum(sizes.values())


def _allocated_bytes(forward: Callable[[], Tensor]) -> int:
    before = torch.cuda.memory_allocated()
    output = forward()
    held = torch.cuda.memory_allocated() - before
    del output
    return held


class PieceStep:
    """Runs the piece without gradients, and drops what it gives."""

    n_parameters = None
    optimizer = None
    model = None
    times_phases = False
    uncaptured = None

    def __init__(self, case: MicroCase) -> None:
        self.piece = build(case)

    def step(self, _mark: Mark = unmarked) -> None:
        """Once."""
        with torch.no_grad():
            self.piece.run()

    @contextmanager
    def ranged(self) -> Iterator[None]:
        """A piece has no parts to name."""
        yield

    def loss(self) -> float | None:
        """A piece has none."""
        return None

    def held_for_backward_bytes(self) -> None:
        """None: a piece runs without gradients."""
