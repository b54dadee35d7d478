"""How a user's module is called: on drawn token ids, or on the batch that came with it."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from peakward.kernels.ops.loss.api import LossFn
from peakward.lab.data.random_tokens import micro_batches
from peakward.lab.levers.configured_step import N_BATCHES
from peakward.lab.models.given_module import GivenModule
from peakward.records.case import Workload
from peakward.records.errors import PeakwardError

Batch = Sequence[Tensor]


class Calls(Protocol):
    """The calls that a step makes of a module."""

    def batches(self, workload: Workload, device: str) -> list[list[tuple[Tensor, ...]]]:
        """For each step its micro-batches."""

    def output(self, module: nn.Module, batch: Batch) -> Tensor:
        """The module's main result."""

    def loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """A scalar to go backward from."""


class DrawnTokens:
    """Random ids, scored against the ids one place on."""

    def __init__(self, given: GivenModule, loss: LossFn) -> None:
        assert given.vocab_size is not None
        self._vocab_size, self._named = given.vocab_size, given.kwargs
        self._of_output, self._of_logits = given.loss, loss

    def batches(self, workload: Workload, device: str) -> list[list[tuple[Tensor, ...]]]:
        """(ids, targets), both (batch_size, seq_len) of int64."""
        drawn = micro_batches(workload, self._vocab_size, device, n_steps=N_BATCHES)
        return [[tuple(batch) for batch in step] for step in drawn]

    def output(self, module: nn.Module, batch: Batch) -> Tensor:
        """Its logits."""
        return main_tensor(module(batch[0], **self._named))

    def loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy, unless a loss came with the module."""
        ids, targets = batch
        output = module(ids, **self._named)
        if self._of_output is not None:
            return scalar(self._of_output(output))
        logits = main_tensor(output)
        if logits.dim() != 3 or logits.shape[:2] != targets.shape:
            raise PeakwardError(
                f"expected logits of (batch_size, seq_len, vocabulary) = {tuple(targets.shape)} and a "
                f"vocabulary, got {tuple(logits.shape)}: return (module, batch, loss)"
            )
        return scalar(self._of_logits(nn.Identity(), logits, targets))


class GivenBatch:
    """The batch that came with the module, every step the same."""

    def __init__(self, given: GivenModule, dtype: torch.dtype) -> None:
        self._leaves, self._spec = tree_flatten((given.args, given.kwargs))
        self._dtype, self._loss = dtype, given.loss
        self._places = [i for i, each in enumerate(self._leaves) if isinstance(each, Tensor)]

    def batches(self, workload: Workload, device: str) -> list[list[tuple[Tensor, ...]]]:
        """Its tensors on the device, those of floats in the type of the parameters.

        Raises:
            PeakwardError: it is not of the workload's size, which its rates would be reckoned by.
        """
        first = self._leaves[self._places[0]]
        if tuple(first.shape[:2]) != (workload.batch_size, workload.seq_len):
            raise PeakwardError(
                f"expected a batch of {workload.batch_size} × {workload.seq_len} (--batch-size, --seq-len), "
                f"got a first tensor of {tuple(first.shape)}: say its size by these options, or let the "
                "factory take batch_size and seq_len"
            )
        held = tuple(self._moved(self._leaves[i], device) for i in self._places)
        return [[held] * workload.accumulate]

    def _moved(self, tensor: Tensor, device: str) -> Tensor:
        dtype = self._dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.detach().to(device, dtype)

    def _called(self, module: nn.Module, batch: Batch) -> Any:
        leaves = list(self._leaves)
        for i, tensor in zip(self._places, batch, strict=True):
            leaves[i] = tensor
        args, kwargs = tree_unflatten(leaves, self._spec)
        return module(*args, **kwargs)

    def output(self, module: nn.Module, batch: Batch) -> Tensor:
        """The logits of its output, or the first tensor of it."""
        return main_tensor(self._called(module, batch))

    def loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """The loss of the module's output."""
        output = self._called(module, batch)
        return scalar(output if self._loss is None else self._loss(output))


def main_tensor(output: Any) -> Tensor:
    """A module's result itself, its `.logits`, or the first tensor in it.

    Raises:
        PeakwardError: it holds no tensor of floats.
    """
    found = getattr(output, "logits", output)
    for each in tree_leaves(found):
        if isinstance(each, Tensor) and each.is_floating_point():
            return each
    raise PeakwardError(
        f"expected a module that gives a tensor of floats, got {type(output).__name__}"
    )


def scalar(output: Any) -> Tensor:
    """A loss, or an output's own.

    Raises:
        PeakwardError: neither is one number that a gradient can start from.
    """
    found = getattr(output, "loss", output)
    if not isinstance(found, Tensor) or found.numel() != 1:
        got = (
            f"a tensor of {tuple(found.shape)}"
            if isinstance(found, Tensor)
            else type(found).__name__
        )
        raise PeakwardError(
            f"expected a loss of one element to go backward from, got {got}: give a loss, a function of the "
            "module's output"
        )
    if torch.is_grad_enabled() and not found.requires_grad:
        raise PeakwardError(
            "expected a loss that depends on a parameter that requires a gradient, got one that does not: "
            "take the pass forward, or let parameters require gradients"
        )
    return found.reshape(())
