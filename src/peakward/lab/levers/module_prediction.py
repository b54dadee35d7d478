"""A user's module in a case as its operators, for a prediction: nothing of it is computed."""

from typing import Any

import torch
from torch import Tensor

from peakward.lab.data.random_tokens import micro_batches
from peakward.lab.levers import precision
from peakward.lab.levers.module_calls import main_tensor
from peakward.lab.levers.module_step import place
from peakward.lab.models import module_source
from peakward.lab.models.module_capture import capture_module
from peakward.lab.ops.loss import api as losses
from peakward.records.case import ModuleCase, ModulePass
from peakward.records.errors import PeakwardError
from peakward.records.module_capture import ModuleCapture

SEEN = {"attention": "as-written", "compile": "none", "cuda_graphs": False, "checkpointing": "none"}
"""Settings that a capture sees no other of."""


def capture_case(case: ModuleCase) -> ModuleCapture:
    """One step of the case, by `capture_module`; the module is built on the CPU.

    Raises:
        PeakwardError: a setting that a capture does not see; or as `module_source.build` and
            `capture_module`.
    """
    _expect_seen(case)
    on_cpu = ModuleCase(
        source=case.source, fingerprint=case.fingerprint, workload=case.workload, device="cpu"
    )
    given, work = module_source.build(on_cpu), case.workload
    kind = case.configuration.precision
    place(given.module, "cpu", precision.parameter_dtype(kind), keeps_buffers=given.keeps_buffers)
    args, loss = given.args, given.loss
    if given.vocab_size is not None:
        (((ids, targets),), *_) = micro_batches(work, given.vocab_size, "cpu", n_steps=1)
        args = (ids,)
        loss = loss or _of_logits(targets)
    pass_: ModulePass = work.pass_  # type: ignore[assignment]
    return capture_module(
        given.module,
        args,
        given.kwargs,
        pass_=pass_,
        loss=loss,
        autocast=precision.AUTOCAST.get(kind),
        tokens=round(work.tokens_per_step),
    )


def _of_logits(targets: Tensor) -> Any:
    return lambda output: losses.of_torch(torch.nn.Identity(), main_tensor(output), targets)


def _expect_seen(case: ModuleCase) -> None:
    configuration = case.configuration
    for field, seen in SEEN.items():
        if getattr(configuration, field) != seen:
            raise PeakwardError(
                f"expected {field.replace('_', '-')} {seen} to predict a module by its operators, got "
                f"{getattr(configuration, field)}: take the lever off"
            )
    if configuration.precision == "tf32" or case.workload.accumulate != 1:
        raise PeakwardError(
            "expected one micro-batch and a precision that operands show, got "
            f"{configuration.precision} and {case.workload.accumulate}: a capture tells neither tf32 nor "
            "several"
        )
    if case.workload.caches:
        raise PeakwardError(
            f"expected a pass of any module, got {case.workload.pass_}: take forward"
        )
