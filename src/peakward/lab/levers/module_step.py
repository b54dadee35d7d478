"""A pass of a user's module, its levers applied from outside, ready to run steps."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from peakward.lab.data.resident import Resident
from peakward.lab.levers import module_levers, precision
from peakward.lab.levers.configured_step import ConfiguredStep
from peakward.lab.levers.module_calls import Calls, DrawnTokens, GivenBatch
from peakward.lab.models.given_module import GivenModule
from peakward.lab.models.repeated_blocks import repeated_blocks
from peakward.levers import catalogue
from peakward.records.case import ModuleCase
from peakward.records.errors import PeakwardError


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
        _expect_fp32(module)
        blocks = repeated_blocks(module)
        if blocks is not None and max_blocks is not None:
            del blocks[max_blocks:]
        self.n_blocks = 0 if blocks is None else len(blocks)
        place(module, case.device, dtype, keeps_buffers=given.keeps_buffers)
        self._calls: Calls
        if given.vocab_size is None:
            self._calls = GivenBatch(given, dtype)
        else:
            self._calls = DrawnTokens(given, catalogue.function("loss", configuration))
        batches = self._calls.batches(case.workload, case.device)
        # In the types that steps run in: cuDNN's kernel takes 16-bit ones alone.
        with precision.autocast(configuration.precision, case.device):
            module_levers.expect_sdpa(
                configuration.attention, lambda: self._calls.output(module, batches[0][0])
            )
        catalogue.apply_to_module(module, configuration)
        module_levers.recompute(module, configuration.checkpointing)
        module_levers.compile_in_place(module, configuration.compile, configuration.compile_scope)
        super().__init__(case, module, Resident(batches))

    def ranged(self) -> AbstractContextManager[None]:
        """While it lasts, steps open the ranges of `ranges` around the repeated blocks."""
        return module_levers.ranged(self.model)

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


def _expect_fp32(module: nn.Module) -> None:
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


def place(module: nn.Module, device: str, dtype: torch.dtype, *, keeps_buffers: bool) -> None:
    """Move the module, in place, and cast its floats; to 16 bits its parameters alone, if it asks so."""
    if not (keeps_buffers and dtype.itemsize < 4):
        module.to(device, dtype)
        return
    module.to(device)
    for each in module.parameters():
        if each.is_floating_point():
            each.data = each.data.to(dtype)
