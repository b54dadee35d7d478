"""A case, built on its device with its levers applied, ready to run steps."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from peakward.lab.levers import precision
from peakward.lab.levers.model_step import ModelStep
from peakward.lab.levers.module_step import ModuleStep, prepared_module
from peakward.lab.levers.operator_step import AttentionStep, PieceStep
from peakward.lab.models import module_source
from peakward.lab.models.given_module import GivenModule
from peakward.levers.catalogue import together_obstacle
from peakward.levers.precision import fp32_matmuls
from peakward.levers.workload import workers_obstacle
from peakward.records.case import (
    Case,
    CollectivesCase,
    ConfiguredCase,
    LayoutCase,
    MicroCase,
    ModuleCase,
    NumericsCase,
    OperatorCase,
    QualityCase,
    SpeculationCase,
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
    if isinstance(case, SpeculationCase):
        raise PeakwardError(
            f"expected a case whose steps are alike, got texts of {case.model}: measure it instead"
        )
    if isinstance(case, QualityCase | NumericsCase):
        raise PeakwardError(
            f"expected a case whose steps are alike, got {case.subject}: measure it instead"
        )
    if isinstance(case, CollectivesCase | LayoutCase):
        raise PeakwardError(
            f"expected a case of one process, got one of several ranks ({case.device}): measure it instead"
        )
    if isinstance(case, StepCase):
        raise PeakwardError(
            f"expected a case that can be built from its description, got the live step {case.name!r}: "
            "use investigate, or measure_step, where it lives"
        )
    if isinstance(case, OperatorCase):
        with fp32_matmuls(case.precision):
            yield AttentionStep(case)
        return
    if isinstance(case, MicroCase):
        with fp32_matmuls("tf32" if case.precision == "tf32" else "fp32"):
            yield PieceStep(case)
        return
    check_together(case)
    if isinstance(case, ModuleCase):
        given = module_source.build(case)
        _expect_said(case, given)
        with prepared_module(case, given) as module_step:
            yield module_step
        return
    setting = case.configuration.precision
    with fp32_matmuls(setting):
        step = ModelStep(case, precision.parameter_dtype(setting))
        try:
            yield step
        finally:
            step.release()


def _expect_said(case: ModuleCase, given: GivenModule) -> None:
    """A module that its factory compiled is not measured as if it were not.

    Raises:
        PeakwardError: the case does not say that it is compiled.
    """
    if given.compiled is not None and case.configuration.compile == "none":
        raise PeakwardError(
            f"expected compile=default,compile_scope={given.compiled} of {case.source}, whose module comes "
            "compiled, got compile=none: say so, or let the factory leave its compilation out"
        )


def check_together(case: ConfiguredCase) -> None:
    """
    Raises:
        PeakwardError: settings that exclude each other, or do not go with the model or the workload.
    """
    capability = torch.cuda.get_device_capability() if case.device == "cuda" else None
    reason = together_obstacle(case, compute_capability=capability)
    if reason is not None:
        raise PeakwardError(f"expected settings that go together: {reason}")
    data = case.workload.data
    if data is not None:
        reason = workers_obstacle(data.n_workers, os.cpu_count() or 1)
        if reason is not None:
            raise PeakwardError(reason)
