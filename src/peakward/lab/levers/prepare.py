"""A case, built on its device with its levers applied, ready to run steps."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from peakward.lab.levers import precision
from peakward.lab.levers.model_step import ModelStep
from peakward.lab.levers.module_step import ModuleStep, prepared_module
from peakward.lab.levers.operator_step import AttentionStep
from peakward.lab.levers.piece_step import PieceStep
from peakward.lab.models import module_source
from peakward.levers.cached import cache_obstacle
from peakward.levers.experts import experts_obstacle
from peakward.levers.feeding import feeding_obstacle, workers_obstacle
from peakward.levers.flash import flash_obstacle
from peakward.levers.fused import fused_obstacle
from peakward.levers.graphs import graphs_obstacle
from peakward.records.case import (
    Case,
    ConfiguredCase,
    MicroCase,
    ModelCase,
    ModuleCase,
    OperatorCase,
    StepCase,
)
from peakward.records.errors import PeakwardError

PreparedStep = ModelStep | ModuleStep | AttentionStep | PieceStep


@contextmanager
def prepare(case: Case) -> Iterator[PreparedStep]:
    """Build the case; on leaving, global torch settings are as they were.

    Raises:
        PeakwardError: levers that exclude each other, a piece of code that cannot run here, or a live step,
            which cannot be built.
    """
    if isinstance(case, StepCase):
        raise PeakwardError(
            f"expected a case that can be built from its description, got the live step {case.name!r}: "
            "use investigate, or measure_step, where it lives"
        )
    if isinstance(case, OperatorCase):
        with precision.fp32_matmuls(case.precision):
            yield AttentionStep(case)
        return
    if isinstance(case, MicroCase):
        with precision.fp32_matmuls("tf32" if case.precision == "tf32" else "fp32"):
            yield PieceStep(case)
        return
    check_together(case)
    if isinstance(case, ModuleCase):
        with prepared_module(case, module_source.build(case)) as module_step:
            yield module_step
        return
    _check(case)
    setting = case.configuration.precision
    with precision.fp32_matmuls(setting):
        step = ModelStep(case, precision.parameter_dtype(setting))
        try:
            yield step
        finally:
            step.release()


def check_together(case: ConfiguredCase) -> None:
    """
    Raises:
        PeakwardError: levers that exclude each other.
    """
    reason = graphs_obstacle(case)
    if reason is not None:
        raise PeakwardError(f"expected settings that go with CUDA graphs: {reason}")


def _check(case: ModelCase) -> None:
    if case.configuration.attention == "as-written":
        raise PeakwardError("expected an attention of the decoder's, got as-written: use naive")
    capability = torch.cuda.get_device_capability() if case.device == "cuda" else None
    reason = experts_obstacle(case, compute_capability=capability)
    if reason is not None:
        raise PeakwardError(f"expected settings that go with a mixture of experts: {reason}")
    reason = cache_obstacle(case)
    if reason is not None:
        raise PeakwardError(f"expected settings that go with a key-value cache: {reason}")
    reason = flash_obstacle(case, compute_capability=capability)
    if reason is not None:
        raise PeakwardError(f"expected settings that go with Peakward's attention: {reason}")
    reason = fused_obstacle(case)
    if reason is not None:
        raise PeakwardError(f"expected settings that go with Peakward's kernels: {reason}")
    reason = feeding_obstacle(case)
    if reason is not None:
        raise PeakwardError(f"expected settings that go with a loader of text: {reason}")
    if case.workload.data is not None:
        n_cores = os.cpu_count() or 1
        reason = workers_obstacle(case.workload.data.n_workers, n_cores)
        if reason is not None:
            raise PeakwardError(reason)
