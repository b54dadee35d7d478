"""A pass of a user's module, its levers applied from outside, ready to run steps.

The module is called on drawn token ids, or on the batch that came with it.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from peakward.kernels.ops.linear_cross_entropy import api as linear_cross_entropy
from peakward.kernels.ops.loss.api import LossFn, of_torch
from peakward.lab.data.feed import Resident, micro_batches
from peakward.lab.levers import fp8_layers, module_levers, precision
from peakward.lab.levers.configured_step import N_BATCHES, ConfiguredStep
from peakward.lab.models.given_module import GivenModule, repeated_blocks
from peakward.lab.rewriting import rewriting
from peakward.levers import catalogue
from peakward.records.case import Configuration, ModuleCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.linear_layers import LinearChoice


class ModuleStep(ConfiguredStep):
    """One pass of a user's module over its micro-batches, again and again.

    Args:
        given: the module and what it is called on. The module is moved, cast and wrapped in place.
        dtype: of its parameters.
        max_blocks: of its repeated blocks no more than the first of these are kept.
    """

    case: ModuleCase

    def __init__(
        self,
        case: ModuleCase,
        given: GivenModule,
        dtype: torch.dtype,
        *,
        max_blocks: int | None = None,
    ) -> None:
        configuration, module = case.configuration, given.module
        self.case, self.model = case, module
        if given.comes_in_bf16:
            expect_said(case, dtype)
        else:
            expect_fp32(module)
        blocks = repeated_blocks(module)
        if blocks is not None and max_blocks is not None:
            del blocks[max_blocks:]
        self.n_blocks = 0 if blocks is None else len(blocks)
        place(module, case.device, dtype, keeps_buffers=given.keeps_buffers)
        self._calls = calls_of(case, given, dtype)
        batches = self._calls.batches(case.workload, case.device)
        root, within = self._calls.rooted(module, _left_to_apply(case))
        catalogue.apply_to_module(root, within)
        module.train(case.workload.trains)
        if configuration.precision == "fp8":
            # A check of numbers on fewer blocks has other sizes, on which nothing may win.
            is_chosen = max_blocks is not None or given.in_fp8 is not None
            with precision.autocast("fp8", case.device), fp8_layers.eagerly(root):
                fp8_layers.choose(
                    module,
                    lambda: self._tried(batches[0][0]),
                    loss=configuration.loss,
                    clock=None if is_chosen else fp8_layers.timed,
                    names=given.in_fp8,
                )
        # In the types that steps run in: cuDNN's kernel takes 16-bit ones alone.
        with precision.autocast(configuration.precision, case.device):
            rewriting.settle(root, lambda: self._tried(batches[0][0]))
        module_levers.recompute(module, configuration.checkpointing)
        module_levers.compile_in_place(root, configuration.compile, configuration.compile_scope)
        super().__init__(case, module, Resident(batches))

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """See `ConfiguredStep`."""
        return list(repeated_blocks(self.model) or ())

    def ranged(self) -> AbstractContextManager[None]:
        """While it lasts, steps open the ranges of `ranges` around the repeated blocks."""
        return module_levers.ranged(self.model)

    @property
    def linear_choice(self) -> LinearChoice | None:
        """The layers that compute in fp8, under that lever."""
        return fp8_layers.choice_in(self.model)

    def _tried(self, batch: Sequence[Tensor]) -> Tensor:
        """The forward pass of a step, with its loss where it has one."""
        if self.case.workload.trains:
            return self._calls.loss(self.model, batch)
        with torch.no_grad():
            return self._calls.output(self.model, batch)

    def _output_of(self, batch: Sequence[Tensor]) -> Tensor:
        return self._calls.output(self.model, batch)

    def _loss_of(self, batch: Sequence[Tensor]) -> Tensor:
        return self._calls.loss(self.model, batch)


@contextmanager
def prepared_module(
    case: ModuleCase, given: GivenModule, *, max_blocks: int | None = None
) -> Iterator[ModuleStep]:
    """The step, ready; on leaving, global torch settings are as they were.

    Raises:
        PeakwardError: a setting that cannot be applied from outside, or a module that is not as it
            must be.
    """
    reason = catalogue.outside_obstacle(case)
    if reason is not None:
        raise PeakwardError(
            f"expected settings that can be applied to a module from outside: {reason}"
        )
    dtype = precision.parameter_dtype(case.configuration.precision)
    with catalogue.around(case.configuration):
        step = ModuleStep(case, given, dtype, max_blocks=max_blocks)
        try:
            yield step
        finally:
            step.release()


def _left_to_apply(case: ModuleCase) -> Configuration:
    """The configuration, less what transformers builds its modules with."""
    built = case.source.startswith("hf:") and case.configuration.attention in ("naive", "sdpa")
    return case.configuration.with_settings({"attention": "as-written"} if built else {})


def expect_fp32(module: nn.Module) -> None:
    """The precision is a setting of the case, and so not the module's own."""
    for name, each in module.named_parameters():
        if each.is_meta:
            raise PeakwardError(
                f"expected parameters with values, got {name} on the device meta: build the module on the "
                "CPU, or give it to `pw.predict`, which needs none"
            )
        if each.is_floating_point() and each.dtype != torch.float32:
            raise PeakwardError(
                f"expected a module with parameters in fp32, got {name} in {str(each.dtype)[6:]}: let the "
                "precision be set here, by --precision or a lever"
            )


def expect_said(case: ModuleCase, dtype: torch.dtype) -> None:
    """A module whose parameters come in bf16 is stepped in that alone, or in fp64 for an oracle.

    Raises:
        PeakwardError: the case says another precision.
    """
    if dtype != torch.float64 and case.configuration.precision != "bf16":
        raise PeakwardError(
            f"expected precision=bf16 of {case.source}, whose parameters come in bf16, got "
            f"{case.configuration.precision}: say so, or let them be made in fp32, where precision is a lever"
        )


def place(module: nn.Module, device: str, dtype: torch.dtype, *, keeps_buffers: bool) -> None:
    """Move the module, in place, and cast its floats; to 16 bits its parameters alone, if it asks so.

    Complex numbers stay as they are, and beside fp64 become complex128: torch's `module.to(dtype)` would
    leave their real parts alone, which is another model.
    """
    if not (keeps_buffers and dtype.itemsize < 4):
        module._apply(lambda each: each.to(device, _held(each, dtype)))
        return
    module.to(device)
    for each in module.parameters():
        if each.is_floating_point():
            each.data = each.data.to(dtype)


def widened(tensor: Tensor) -> Tensor:
    """Floats in fp64, complex numbers in complex128, all else as it is."""
    return tensor.to(_held(tensor, torch.float64))


def _held(each: Tensor, dtype: torch.dtype) -> torch.dtype:
    if each.is_complex():
        return torch.complex128 if dtype == torch.float64 else each.dtype
    return dtype if each.is_floating_point() else each.dtype


Batch = Sequence[Tensor]


class Calls(Protocol):
    """The calls that a step makes of a module."""

    def rooted(
        self, module: nn.Module, configuration: Configuration
    ) -> tuple[nn.Module, Configuration]:
        """The module that levers are applied to, and the settings left to apply to it."""

    def batches(self, workload: Workload, device: str) -> list[list[tuple[Tensor, ...]]]:
        """For each step its micro-batches."""

    def output(self, module: nn.Module, batch: Batch) -> Tensor:
        """The module's main result."""

    def loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """A scalar to go backward from."""


def calls_of(case: ModuleCase, given: GivenModule, dtype: torch.dtype) -> Calls:
    """The calls of the module that was given: on the batch that came with it, or on drawn tokens."""
    if given.vocab_size is None:
        # What comes in bf16 is called on its batch as it comes.
        is_own = given.comes_in_bf16 and dtype == torch.bfloat16
        return GivenBatch(given, None if is_own else dtype)
    return DrawnTokens(given, catalogue.function("loss", case.configuration))


class Scored(nn.Module):
    """A module with torch's loss of its logits, so that both can be replaced together."""

    def __init__(self, module: nn.Module, named: dict[str, Any]) -> None:
        super().__init__()
        self.module, self._named = module, named

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy of (batch, seq_len) ids against targets."""
        logits = main_tensor(self.module(ids, **self._named))
        return of_torch(nn.Identity(), logits, targets)


class DrawnTokens:
    """Random ids, scored against the ids one place on."""

    def __init__(self, given: GivenModule, loss: LossFn) -> None:
        assert given.vocab_size is not None
        self._vocab_size, self._named = given.vocab_size, given.kwargs
        self._of_output, self._of_logits = given.loss, loss
        self._scored: Scored | None = None

    def rooted(
        self, module: nn.Module, configuration: Configuration
    ) -> tuple[nn.Module, Configuration]:
        """The module with its loss, where that is to have the output layer in it; any other loss is called
        here."""
        if self._of_output is not None:
            return module, configuration
        if configuration.loss in linear_cross_entropy.IMPLEMENTATIONS:
            self._scored = Scored(module, self._named)
            return self._scored, configuration
        return module, configuration.with_settings({"loss": "torch"})

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
        if self._scored is not None:
            return scalar(self._scored(ids, targets))
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

    def __init__(self, given: GivenModule, dtype: torch.dtype | None) -> None:
        self._leaves, self._spec = tree_flatten((given.args, given.kwargs))
        self._dtype, self._loss = dtype, given.loss
        self._places = [i for i, each in enumerate(self._leaves) if isinstance(each, Tensor)]
        self._writes: bool | None = None
        """Whether the module writes to its inputs; None before its first call, which is made on copies."""

    def rooted(
        self, module: nn.Module, configuration: Configuration
    ) -> tuple[nn.Module, Configuration]:
        """The module itself: its loss is in it, or the caller's."""
        return module, configuration

    def batches(self, workload: Workload, device: str) -> list[list[tuple[Tensor, ...]]]:
        """Its tensors on the device, those of floats in the type that is asked for, where one is.

        Raises:
            PeakwardError: it is not of the workload's size, which its rates would be reckoned by.
        """
        expect_size(self._leaves, workload)
        held = tuple(self._moved(self._leaves[i], device) for i in self._places)
        return [[held] * workload.accumulate]

    def _moved(self, tensor: Tensor, device: str) -> Tensor:
        is_cast = self._dtype is not None and tensor.is_floating_point()
        return tensor.detach().to(device, self._dtype if is_cast else tensor.dtype)

    def _called(self, module: nn.Module, batch: Batch) -> Any:
        leaves = list(self._leaves)
        given = batch if self._writes is False else [each.clone() for each in batch]
        for i, tensor in zip(self._places, given, strict=True):
            leaves[i] = tensor
        args, kwargs = tree_unflatten(leaves, self._spec)
        output = module(*args, **kwargs)
        if self._writes is None:
            self._writes = any(each._version for each in given)
        return output

    def output(self, module: nn.Module, batch: Batch) -> Tensor:
        """The logits of its output, or the first tensor of it."""
        return main_tensor(self._called(module, batch))

    def loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """The loss of the module's output."""
        output = self._called(module, batch)
        return scalar(output if self._loss is None else self._loss(output))


def expect_size(batch: Any, workload: Workload) -> None:
    """
    Args:
        batch: what a module is called on, in any containers.

    Raises:
        PeakwardError: its first tensor is not of the workload's size, which rates are reckoned by.
    """
    first = next(each for each in tree_leaves(batch) if isinstance(each, Tensor))
    if tuple(first.shape[:2]) != (workload.batch_size, workload.seq_len):
        raise PeakwardError(
            f"expected a batch of {workload.batch_size} × {workload.seq_len} (--batch-size, --seq-len), got "
            f"a first tensor of {tuple(first.shape)}: say its size by these options, or let the factory take "
            "batch_size and seq_len"
        )


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
            "let parameters require gradients; `peakward run --pass forward` takes a model that is not "
            "trained"
        )
    return found.reshape(())
