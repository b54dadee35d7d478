"""The levers: what each changes in a case, when it applies, what it may do to the numbers."""

from typing import Any, Literal, TypeVar, get_args

import msgspec

from peakward.hardware.compute_capability import spell
from peakward.levers.cached import cache_obstacle
from peakward.levers.experts import experts_obstacle
from peakward.levers.feeding import feeding_obstacle
from peakward.levers.flash import flash_obstacle
from peakward.levers.from_outside import outside_obstacle, step_obstacle
from peakward.levers.fused import fused_obstacle
from peakward.levers.graphs import graphs_obstacle
from peakward.records.case import (
    CONFIGURATION_FIELDS,
    Configuration,
    DeviceType,
    LeverCase,
    ModuleCase,
    Pass,
    StepCase,
)
from peakward.records.device import Accelerator, Vendor
from peakward.records.lever import Lever, NumericsClass
from peakward.records.names import look_up

NOT_OF_FP8 = ("fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16")
SIXTEEN_BIT = ("bf16-mixed", "fp16-mixed", "bf16", "fp8")
WITHOUT_DECODE: tuple[Pass, ...] = ("forward", "forward_backward", "train_step", "prefill")
"""Passes whose queries are as many as their keys."""
WITHOUT_GRADIENTS: tuple[Pass, ...] = ("forward", "prefill", "decode")

Leverable = TypeVar("Leverable", bound=LeverCase)

LEVERS: tuple[Lever, ...] = (
    Lever(
        name="tf32",
        summary="fp32 matmuls on tensor cores, operands rounded to 10 bits of mantissa",
        sets=(("precision", "tf32"),),
        numerics="approximate",
        device_types=("cuda",),
        vendors=("nvidia",),
        min_compute_capability=(8, 0),
    ),
    Lever(
        name="bf16-mixed",
        summary="bf16 autocast over fp32 parameters",
        sets=(("precision", "bf16-mixed"),),
        numerics="approximate",
        min_compute_capability=(8, 0),
    ),
    Lever(
        name="fp16-mixed",
        summary="fp16 autocast over fp32 parameters, with a scaled loss",
        sets=(("precision", "fp16-mixed"),),
        numerics="approximate",
        device_types=("cuda",),
        min_compute_capability=(7, 0),
    ),
    Lever(
        name="bf16",
        summary="parameters, gradients and moments in bf16, no master copy",
        sets=(("precision", "bf16"),),
        numerics="approximate",
        min_compute_capability=(8, 0),
    ),
    Lever(
        name="fp8",
        summary="block matmuls in fp8 with dynamic per-tensor scales, the rest as bf16-mixed",
        sets=(("precision", "fp8"),),
        numerics="approximate",
        device_types=("cuda",),
        vendors=("nvidia",),
        min_compute_capability=(8, 9),
    ),
    Lever(
        name="sdpa",
        summary="torch's scaled_dot_product_attention, the backend that it chooses",
        sets=(("attention", "sdpa"),),
        numerics="reordered",
    ),
    Lever(
        name="sdpa-cudnn",
        summary="scaled_dot_product_attention on cuDNN's kernel",
        sets=(("attention", "sdpa-cudnn"),),
        numerics="reordered",
        device_types=("cuda",),
        vendors=("nvidia",),
        min_compute_capability=(8, 0),
        needs_precision=SIXTEEN_BIT,
    ),
    Lever(
        name="flash",
        summary="attention without a score matrix in Peakward's own kernel, for any such GPU",
        sets=(("attention", "flash"),),
        numerics="reordered",
        passes=WITHOUT_DECODE,
        device_types=("cuda",),
        vendors=("nvidia",),
        min_compute_capability=(8, 0),
    ),
    Lever(
        name="flash-hopper",
        summary="attention without a score matrix in Peakward's own kernel for Hopper alone",
        sets=(("attention", "flash-hopper"),),
        numerics="reordered",
        passes=WITHOUT_DECODE,
        device_types=("cuda",),
        vendors=("nvidia",),
        min_compute_capability=(9, 0),
        max_compute_capability=(9, 0),
        needs_precision=SIXTEEN_BIT,
    ),
    Lever(
        name="flash-decode",
        summary="attention of one new token to a long cache in Peakward's own kernel",
        sets=(("attention", "flash-decode"),),
        numerics="reordered",
        passes=("decode",),
        device_types=("cuda",),
        vendors=("nvidia",),
        min_compute_capability=(8, 0),
    ),
    Lever(
        name="compile",
        summary="torch.compile of the repeated block and of the loss",
        sets=(("compile", "default"),),
        numerics="reordered",
        min_compute_capability=(7, 0),
        needs="compiler",
    ),
    Lever(
        name="cuda-graphs",
        summary="the whole step captured as one CUDA graph",
        sets=(("cuda_graphs", True),),
        numerics="reordered",
        device_types=("cuda",),
    ),
    Lever(
        name="fused-optimizer",
        summary="AdamW in one fused kernel",
        sets=(("optimizer", "adamw-fused"),),
        numerics="reordered",
        passes=("train_step",),
    ),
    Lever(
        name="triton-optimizer",
        summary="AdamW in Peakward's own kernel, each stream of memory moved once",
        sets=(("optimizer", "adamw-triton"),),
        numerics="reordered",
        passes=("train_step",),
        device_types=("cuda",),
        vendors=("nvidia",),
        min_compute_capability=(8, 0),
    ),
    Lever(
        name="fused-loss",
        summary="cross-entropy in Peakward's own kernels, the gradient written over the logits",
        sets=(("loss", "fused"),),
        numerics="reordered",
        passes=("forward_backward", "train_step"),
        device_types=("cuda",),
        vendors=("nvidia",),
        min_compute_capability=(8, 0),
    ),
    Lever(
        name="fused-norm",
        summary="RMSNorm or LayerNorm in Peakward's own kernel, the residual's addition with it",
        sets=(("norm", "fused"),),
        numerics="reordered",
        device_types=("cuda",),
        vendors=("nvidia",),
        min_compute_capability=(8, 0),
    ),
    Lever(
        name="fused-rope",
        summary="queries and keys turned in one pass, where the projection left them",
        sets=(("rope", "fused"),),
        numerics="reordered",
        device_types=("cuda",),
        vendors=("nvidia",),
        min_compute_capability=(8, 0),
    ),
    Lever(
        name="fused-swiglu",
        summary="SwiGLU in one pass each way, of which the projection alone is kept",
        sets=(("swiglu", "fused"),),
        numerics="reordered",
        device_types=("cuda",),
        vendors=("nvidia",),
        min_compute_capability=(8, 0),
    ),
    Lever(
        name="int8-weights",
        summary="the blocks' matrices in 8 bits with a scale an output, widened as they are multiplied",
        sets=(("weights", "int8"),),
        numerics="approximate",
        passes=WITHOUT_GRADIENTS,
        device_types=("cuda",),
        vendors=("nvidia",),
        min_compute_capability=(8, 0),
        needs_precision=NOT_OF_FP8,
    ),
    Lever(
        name="int4-weights",
        summary="the blocks' matrices in 4 bits with a scale for 128 inputs, widened as they are multiplied",
        sets=(("weights", "int4:128"),),
        numerics="approximate",
        passes=WITHOUT_GRADIENTS,
        device_types=("cuda",),
        vendors=("nvidia",),
        min_compute_capability=(8, 0),
        needs_precision=NOT_OF_FP8,
    ),
    Lever(
        name="chunked-loss",
        summary="output layer and cross-entropy by chunks of tokens: never all logits at once",
        sets=(("loss", "chunked"),),
        numerics="reordered",
        saves="memory",
        passes=("forward_backward", "train_step"),
        device_types=("cuda",),
        vendors=("nvidia",),
        min_compute_capability=(8, 0),
    ),
    Lever(
        name="recomputed-loss",
        summary="cross-entropy without logits in the forward pass, computed again in backward",
        sets=(("loss", "recomputed"),),
        numerics="reordered",
        saves="memory",
        passes=("forward_backward", "train_step"),
        device_types=("cuda",),
        vendors=("nvidia",),
        min_compute_capability=(8, 0),
    ),
    Lever(
        name="checkpointing",
        summary="every block's activations recomputed in backward",
        sets=(("checkpointing", "every-block"),),
        numerics="exact",
        saves="memory",
        passes=("forward_backward", "train_step"),
    ),
)


LEAST_CAPABILITY = (7, 0)
"""The V100's, the oldest that is catalogued."""
_MAKERS: dict[Vendor, str] = {"nvidia": "NVIDIA", "amd": "AMD"}

_BACKENDS: tuple[tuple[str, tuple[DeviceType, ...]], ...] = (
    ("flash", ("cpu", "cuda")),
    ("efficient", ("cuda",)),
    ("math", ("cpu", "cuda")),
)
AROUND_A_CALL: tuple[Lever, ...] = (
    *(each for each in LEVERS if each.name in ("tf32", "sdpa-cudnn")),
    *(
        Lever(
            name=f"sdpa-{backend}",
            summary=f"scaled_dot_product_attention on its {backend} kernel",
            sets=(("attention", f"sdpa-{backend}"),),
            numerics="reordered",
            device_types=device_types,
        )
        for backend, device_types in _BACKENDS
    ),
)
"""What is set around the call of a live step, and taken back after it. The last three choose a kernel for
attention that the user wrote; where the attention is ours to choose, these are settings and no levers."""


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What a setting that no lever brings needs; the fields are those of `Lever`."""

    passes: tuple[Pass, ...] = get_args(Pass)
    device_types: tuple[DeviceType, ...] = ("cpu", "cuda")
    min_compute_capability: tuple[int, int] | None = None
    needs_precision: tuple[str, ...] = ()
    needs: Literal["compiler"] | None = None


_CUDA_COMPILE = Needs(device_types=("cuda",), needs="compiler")
_BACKWARD = Needs(passes=("forward_backward", "train_step"))

OTHER_SETTINGS: dict[tuple[str, str | bool], Needs] = {
    # On a CPU the first is the default mode by another name; the second builds C++ for minutes.
    ("compile", "reduce-overhead"): _CUDA_COMPILE,
    ("compile", "max-autotune"): _CUDA_COMPILE,
    # torch 2.13 has no memory-efficient kernel for a CPU, and a flash kernel for every precision.
    ("attention", "sdpa-efficient"): Needs(device_types=("cuda",), min_compute_capability=(5, 0)),
    ("optimizer", "adamw-loop"): Needs(passes=("train_step",)),
    ("checkpointing", "sqrt"): _BACKWARD,
    ("checkpointing", "selective"): _BACKWARD,
}
"""(field of `Configuration`, value) pairs that no lever sets exactly and that cannot apply everywhere."""

FLASH_ON_CUDA = Needs(
    device_types=("cuda",), min_compute_capability=(8, 0), needs_precision=SIXTEEN_BIT
)
"""torch's flash kernel on a GPU takes 16-bit inputs alone."""


def lever(name: str) -> Lever:
    """The lever of that name.

    Raises:
        PeakwardError: no such lever; names the nearest ones.
    """
    return look_up("a lever", name, {each.name: each for each in (*LEVERS, *AROUND_A_CALL)})


def pull(lever: Lever, case: Leverable) -> Leverable:
    """The case with the lever resolved into it."""
    configuration = case.configuration.with_settings(dict(lever.sets))
    return msgspec.structs.replace(case, configuration=configuration)


def lacking(lever: Lever, on: Accelerator) -> str | None:
    """Why the lever does not exist on GPUs of this kind, or None where it does.

    What is not known of the GPU counts as the least that any catalogued one has.
    """
    vendors = get_args(Vendor) if on.vendor is None else (on.vendor,)
    if not set(vendors) <= set(lever.vendors):
        return f"needs a GPU by {' or '.join(_MAKERS[each] for each in lever.vendors)}"
    if on.vendor == "amd":
        return None
    known, least, most = (
        on.compute_capability,
        lever.min_compute_capability,
        lever.max_compute_capability,
    )
    if least is not None and (known or LEAST_CAPABILITY) < least:
        return f"needs compute capability {spell(least)}, got {spell(known)}"
    if most is not None and (known is None or known > most):
        return f"needs compute capability {spell(most)}, got {spell(known)}"
    return None


def numerics_class(lever: Lever, candidate: LeverCase) -> NumericsClass:
    """What pulling the lever may do to the numbers of this candidate.

    A compiler fuses, and so rounds, a recomputed block otherwise than a kept one.
    """
    compiled = candidate.configuration.compile != "none"
    return "reordered" if lever.numerics == "exact" and compiled else lever.numerics


def changes(lever: Lever, case: LeverCase) -> bool:
    """Whether pulling the lever makes another case of it."""
    return pull(lever, case) != case


def obstacle(
    lever: Lever,
    case: LeverCase,
    *,
    compute_capability: tuple[int, int] | None,
    has_compiler: bool,
) -> str | None:
    """Why the lever cannot apply to the case on this machine, or None where it can. Of a module of the
    user's, that it cannot from outside is said before what the machine lacks."""
    candidate = pull(lever, case)
    return _outside(candidate) or _unmet(
        lever, candidate, compute_capability=compute_capability, has_compiler=has_compiler
    )


def case_obstacle(
    case: LeverCase, *, compute_capability: tuple[int, int] | None, has_compiler: bool
) -> str | None:
    """Why a setting of the case cannot apply on this machine, or None. Defaults always can."""
    if (outside := _outside(case)) is not None:
        return outside
    for field in CONFIGURATION_FIELDS:
        reason = setting_obstacle(
            field, case, compute_capability=compute_capability, has_compiler=has_compiler
        )
        if reason is not None:
            return reason
    if isinstance(case, StepCase):
        return None
    if isinstance(case, ModuleCase):
        return graphs_obstacle(case)
    if case.configuration.attention == "as-written":
        return "attention as-written needs a module of your own: the decoder's is naive"
    return (
        graphs_obstacle(case)
        or cache_obstacle(case)
        or feeding_obstacle(case)
        or experts_obstacle(case, compute_capability=compute_capability)
        or flash_obstacle(case, compute_capability=compute_capability)
        or fused_obstacle(case)
    )


def _outside(case: LeverCase) -> str | None:
    """Why a setting cannot be applied to what the user wrote, or None."""
    if isinstance(case, StepCase):
        return step_obstacle(case)
    return outside_obstacle(case) if isinstance(case, ModuleCase) else None


def setting_obstacle(
    field: str,
    case: LeverCase,
    *,
    compute_capability: tuple[int, int] | None,
    has_compiler: bool = True,
) -> str | None:
    """Why that field of the case's configuration cannot be as it is on this machine, or None."""
    value = getattr(case.configuration, field)
    needs = _needs(field, value, case.device)
    if needs is None or value == getattr(Configuration(), field):
        return None
    reason = _unmet(needs, case, compute_capability=compute_capability, has_compiler=has_compiler)
    if reason is None:
        return None
    written = "on" if value is True else value
    return f"{field.replace('_', '-')} {written} {reason}"


def _needs(field: str, value: Any, device: DeviceType) -> Lever | Needs | None:
    """What a setting needs: as the lever that makes exactly it declares, or on its own."""
    exact = next((each for each in LEVERS if dict(each.sets).get(field) == value), None)
    if (field, value) == ("attention", "sdpa-flash") and device == "cuda":
        return FLASH_ON_CUDA
    return exact or OTHER_SETTINGS.get((field, value))


def _unmet(
    needs: Lever | Needs,
    case: LeverCase,
    *,
    compute_capability: tuple[int, int] | None,
    has_compiler: bool,
) -> str | None:
    device, precision = case.device, case.configuration.precision
    # What a live step does, and in which types, is its own to know: where a kernel refuses, it raises.
    live = isinstance(case, StepCase)
    pass_ = None if isinstance(case, StepCase) else case.workload.pass_
    least = needs.min_compute_capability
    reasons = (
        (
            pass_ is not None and pass_ not in needs.passes,
            f"needs the pass {' or '.join(needs.passes)}, got {pass_}",
        ),
        (
            device not in needs.device_types,
            f"needs {' or '.join(needs.device_types)}, got {device}",
        ),
        (
            not live and needs.needs_precision and precision not in needs.needs_precision,
            f"needs the precision {' or '.join(needs.needs_precision)}, got {precision}",
        ),
        (
            device == "cuda"
            and least is not None
            and compute_capability is not None
            and compute_capability < least,
            f"needs compute capability {spell(least)}, got {spell(compute_capability)}",
        ),
        (needs.needs == "compiler" and not has_compiler, "needs a C++ compiler on the PATH"),
    )
    return next((reason for failed, reason in reasons if failed), None)
