"""Runs a live module under levers in this process, where `isolated.Workers` cannot send it to a worker.

Every configuration runs on a copy of the module, which is made for it and dropped after it; the user's
own module is never run.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import msgspec
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from peakward.lab.levers.module_check import check_given
from peakward.lab.levers.module_prediction import capture_given, expect_seen
from peakward.lab.levers.module_step import ModuleStep, prepared_module
from peakward.lab.levers.prepare import check_together
from peakward.lab.measure.in_process import fingerprint, source, type_of
from peakward.lab.measure.this_process import PROFILED, ThisProcess
from peakward.lab.models.copies import copied
from peakward.lab.models.given_module import GivenModule
from peakward.lab.models.python_source import raise_as_bad_input
from peakward.lab.models.snapshot import Snapshot
from peakward.lab.numerics.judge import judge
from peakward.lab.numerics.of_module import of_module
from peakward.levers.compile import compiled_before
from peakward.records.case import (
    AS_WRITTEN,
    Case,
    CompileScope,
    ModuleCase,
    ModulePass,
    StepCase,
    Workload,
)
from peakward.records.errors import PeakwardError
from peakward.records.lever import Claim, NumericsVerdict
from peakward.records.op_graph import ModuleCapture

SHARED = (
    "in process: the user's own module stays resident beside the copy that is measured, and the "
    "allocator's and the compiler's caches were not isolated"
)


def live_case(
    given: GivenModule, pass_: ModulePass, compiled: CompileScope | None = None
) -> ModuleCase:
    """The case that stands for a live module on its batch.

    Args:
        compiled: the part of it that its caller compiled, which is the start of every lever.

    Raises:
        PeakwardError: The module lies on several devices, or the batch on another one; or the batch's
        first tensor is not (batch_size, seq_len, …).
    """
    device = type_of(_place(given))
    first = _tensors(given)[0]
    if first.dim() < 2:
        raise PeakwardError(
            f"expected a batch whose first tensor is (batch_size, seq_len, …), got {tuple(first.shape)}"
        )
    precision = "fp32"
    if device == "cuda" and torch.get_float32_matmul_precision() != "highest":
        precision = "tf32"
    if given.comes_in_bf16:
        precision = "bf16"
    return ModuleCase(
        source=f"live:{type(given.module).__name__}",
        fingerprint=_fingerprint(given),
        workload=Workload(batch_size=first.shape[0], seq_len=first.shape[1], pass_=pass_),
        configuration=compiled_before(
            msgspec.structs.replace(AS_WRITTEN, precision=precision), compiled
        ),
        device=device,
    )


def _fingerprint(given: GivenModule) -> str:
    """The fingerprint of the code of all its modules and of the loss, and of the parameters' content; behind
    a hyphen that of its parameters' names and shapes alone."""
    kinds = dict.fromkeys(type(each) for each in given.module.modules())
    digest = hashlib.sha256("".join(map(source, kinds)).encode())
    digest.update(fingerprint(given.loss or type(given.module).forward, given.module).encode())
    return f"{digest.hexdigest()[:16]}-{_shapes(given.module)}"


def _shapes(module: nn.Module) -> str:
    told = [f"{name} {tuple(each.shape)}" for name, each in module.named_parameters()]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:8]


def expect_model_of(
    case: ModuleCase | StepCase, n_parameters: int | None, model: nn.Module
) -> None:
    """Refuse a model that a study's case is not of, as far as its record says; of a live step that is the
    number of its parameters.

    Args:
        n_parameters: of the study's model, where it was measured.

    Raises:
        PeakwardError: it is of another class, has other parameters or lies on another device.
    """
    name, device = type(model).__name__, type_of(_place(GivenModule(module=model)))
    source = case.source if isinstance(case, ModuleCase) else ""
    _, is_live, wanted = source.rpartition("live:")
    n = sum(each.numel() for each in model.parameters())
    if is_live and wanted != name:
        raise PeakwardError(f"expected a {wanted}, which the study is of, got a {name}")
    alike = case.fingerprint.rpartition("-")[2] == _shapes(model)
    if (is_live and not alike) or n_parameters not in (None, n):
        count = "others" if n_parameters is None else f"{n_parameters:,} in other shapes"
        raise PeakwardError(
            f"expected the parameters that the study is of ({count}), got {n:,} of {name}: run "
            "pw.optimize on this model"
        )
    if case.device != device:
        raise PeakwardError(
            f"expected a model on {case.device}, where the study was made, got one on {device}: move it "
            "with .to(), or run pw.optimize"
        )


def _tensors(given: GivenModule) -> list[Tensor]:
    leaves = tree_leaves((given.args, given.kwargs))
    return [each for each in leaves if isinstance(each, Tensor)]


def _place(given: GivenModule) -> torch.device:
    held = (*given.module.parameters(), *given.module.buffers())
    places = dict.fromkeys(each.device for each in held)
    if len(places) > 1:
        said = ", ".join(map(str, places))
        raise PeakwardError(
            f"expected a module on one device, got one on {said}: move it with .to()"
        )
    place = next(iter(places), torch.device("cpu"))
    for each in _tensors(given):
        if each.device != place:
            raise PeakwardError(
                f"expected a batch on the module's device {place}, got a tensor of it on {each.device}: "
                "move one of the two with .to()"
            )
    return place


class LiveWorkers(ThisProcess):
    """Answers each request on a copy of the module."""

    def __init__(self, given: GivenModule) -> None:
        super().__init__(_place(given))
        self._given = given
        self._snapshot: Snapshot | None = None
        """Made once: between requests all is as it was."""

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes that all its records carry."""
        return (SHARED, PROFILED) if self._profiled else (SHARED,)

    def _kept(self) -> AbstractContextManager[None]:
        if self._snapshot is None:
            self._snapshot = Snapshot(self._given.module, None)
        return self._snapshot.kept()

    def _judged(self, claims: Sequence[Claim]) -> tuple[NumericsVerdict, ...]:
        base = claims[0].base
        assert isinstance(base, ModuleCase)
        return judge(of_module(base, self._copy), claims)

    def _captured(self, case: ModuleCase) -> ModuleCapture:
        expect_seen(case)  # Before anything is copied.
        return capture_given(case, self._copy(case))

    def _check(self, case: ModuleCase) -> None:
        check_given(case, self._copy(case))

    @contextmanager
    def _prepare(self, case: Case) -> Iterator[ModuleStep]:
        assert isinstance(case, ModuleCase)
        check_together(case)
        with prepared_module(case, self._copy(case)) as step:
            yield step

    def _copy(self, _case: ModuleCase) -> GivenModule:
        try:
            module = copied(self._given.module)
        except Exception as error:  # noqa: BLE001  a module may hold anything
            raise_as_bad_input(
                error, "a module that copy.deepcopy can copy, for each lever to have its own"
            )
        return replace(self._given, module=module)
