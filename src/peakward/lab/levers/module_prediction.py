"""A user's module in a case as its operators, for a prediction: nothing of it is computed."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from peakward.hardware.attention_backend import HOPPER, ComputeCapability
from peakward.kernels.ops.loss import api as losses
from peakward.lab.data.feed import micro_batches
from peakward.lab.levers import precision
from peakward.lab.levers.fp8_layers import every_layer
from peakward.lab.levers.module_levers import compiled_parts, recompute
from peakward.lab.levers.module_step import expect_said, expect_size, main_tensor, place
from peakward.lab.models import module_source
from peakward.lab.models.callers_compilation import CallersCompilation
from peakward.lab.models.data_parallel import inside
from peakward.lab.models.given_module import GivenModule
from peakward.lab.models.module_capture import capture_module
from peakward.lab.models.transformers_source import silently
from peakward.levers.catalogue import unseen
from peakward.levers.compile import compiled_before
from peakward.levers.precision import coming_in
from peakward.records.case import ModuleCase, ModulePass
from peakward.records.errors import PeakwardError
from peakward.records.op_graph import ModuleCapture


def capture_case(
    case: ModuleCase, compute_capability: ComputeCapability | None = None
) -> ModuleCapture:
    """One step of the case, by `capture_module`.

    Args:
        compute_capability: as `capture_given`.

    Raises:
        PeakwardError: as `capture_given` and `module_source.build`.
    """
    expect_seen(case)
    return capture_given(case, _built(case), compute_capability)


def capture_as_it_comes(
    case: ModuleCase, compute_capability: ComputeCapability | None = None
) -> tuple[ModuleCase, ModuleCapture]:
    """The same, of a step that is compiled where the factory compiled its module, and in bf16 where that came
    so; the case then says it.

    Raises:
        PeakwardError: as `capture_case`.
    """
    expect_seen(case)
    given = _built(case)
    configuration = coming_in(
        compiled_before(case.configuration, given.compiled), in_bf16=given.comes_in_bf16
    )
    case = msgspec.structs.replace(case, configuration=configuration)
    # Models of transformers say at their first pass which packages they would rather run.
    quiet = silently() if case.source.startswith("hf:") else nullcontext()
    with quiet:
        return case, capture_given(case, given, compute_capability)


def _built(case: ModuleCase) -> GivenModule:
    """A module of transformers is described on the meta device, whatever its size; one of Python is built on
    the CPU."""
    as_written = ModuleCase(
        source=case.source, fingerprint=case.fingerprint, workload=case.workload, device="cpu"
    )
    device = "meta" if case.source.startswith("hf:") else "cpu"
    return module_source.build(as_written, device=device)


def capture_given(
    case: ModuleCase, given: GivenModule, compute_capability: ComputeCapability | None = None
) -> ModuleCapture:
    """One step of the case on that module, which is moved, cast and wrapped in place.

    Args:
        compute_capability: The GPU's, on which the kernel of attention depends. None: of the GPU that is
            here, or of an H100 where there is none.

    Raises:
        PeakwardError: a setting that a capture does not see, a batch of another size than the workload's; or
            as `capture_module`, or `recompute`.
    """
    expect_seen(case)
    work = case.workload
    kind = case.configuration.precision
    if given.comes_in_bf16:
        expect_said(case, precision.parameter_dtype(kind))
    place(
        given.module,
        _device(given.module),
        precision.parameter_dtype(kind),
        keeps_buffers=given.keeps_buffers,
    )
    if kind == "fp8":
        # Those that win are known where they run alone.
        every_layer(given.module)
    recompute(given.module, case.configuration.checkpointing)
    args, loss = given.args, given.loss
    if given.vocab_size is not None:
        (((ids, targets),), *_) = micro_batches(work, given.vocab_size, "cpu", n_steps=1)
        args = (ids,)
        loss = loss or _of_logits(targets)
    else:
        expect_size((args, given.kwargs), work)
    pass_: ModulePass = work.pass_  # type: ignore[assignment]
    return capture_module(
        given.module,
        args,
        given.kwargs,
        pass_=pass_,
        loss=loss,
        autocast=precision.AUTOCAST.get(kind),
        autocast_cache=False,  # As `precision.autocast` has it.
        tokens=round(work.tokens_per_step),
        compiled=compiled_parts(
            given.module, case.configuration.compile, case.configuration.compile_scope
        ),
        compute_capability=compute_capability or _capability_here(),
    )


def capture_live(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], **settings: Any
) -> ModuleCapture:
    """One step of a live module, compiled where its caller compiled it; inside a DistributedDataParallel that
    of the module that it wraps.

    Args:
        settings: as `capture_module`.

    Raises:
        PeakwardError: as `capture_module`.
    """
    compilation = CallersCompilation(inside(module))
    with compilation.off() as plain:
        return capture_module(plain, args, kwargs, **settings, compiled=compilation.parts)


def _device(module: torch.nn.Module) -> str:
    """meta for a module that is there; else the CPU."""
    on_meta = any(each.is_meta for each in module.parameters())
    return "meta" if on_meta else "cpu"


def _capability_here() -> ComputeCapability:
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else HOPPER


def _of_logits(targets: Tensor) -> Any:
    return lambda output: losses.of_torch(torch.nn.Identity(), main_tensor(output), targets)


def expect_seen(case: ModuleCase) -> None:
    """
    Raises:
        PeakwardError: a setting that a capture does not see.
    """
    reason = unseen(case)
    if reason is not None:
        raise PeakwardError(
            f"expected a case that a capture of operators sees, got one whose {reason}"
        )
