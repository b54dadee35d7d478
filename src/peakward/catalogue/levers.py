"""The levers: what each changes in a case, when it applies, what it may do to the numbers."""

import difflib

import msgspec

from peakward.records.case import Configuration, ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.lever import Lever, NumericsClass

SIXTEEN_BIT = ("bf16-mixed", "fp16-mixed", "bf16", "fp8")

LEVERS: tuple[Lever, ...] = (
    Lever(
        name="tf32",
        summary="fp32 matmuls on tensor cores, operands rounded to 10 bits of mantissa",
        sets=(("precision", "tf32"),),
        numerics="approximate",
        device_types=("cuda",),
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
        min_compute_capability=(8, 0),
        needs_precision=SIXTEEN_BIT,
    ),
    Lever(
        name="compile",
        summary="torch.compile of the repeated block and of the loss",
        sets=(("compile", "default"),),
        numerics="reordered",
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


def lever(name: str) -> Lever:
    """The lever of that name.

    Raises:
        PeakwardError: no such lever; names the nearest ones.
    """
    names = [each.name for each in LEVERS]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names
        raise PeakwardError(f"expected a lever, got {name!r}: perhaps {', '.join(near)}")
    return LEVERS[names.index(name)]


def pull(lever: Lever, case: ModelCase) -> ModelCase:
    """The case with the lever resolved into it."""
    configuration: Configuration = msgspec.structs.replace(case.configuration, **dict(lever.sets))
    return msgspec.structs.replace(case, configuration=configuration)


def numerics_class(lever: Lever, candidate: ModelCase) -> NumericsClass:
    """What pulling the lever may do to the numbers of this candidate.

    A compiler fuses, and so rounds, a recomputed block otherwise than a kept one.
    """
    compiled = candidate.configuration.compile != "none"
    return "reordered" if lever.numerics == "exact" and compiled else lever.numerics


def changes(lever: Lever, case: ModelCase) -> bool:
    """Whether pulling the lever makes another case of it."""
    return pull(lever, case) != case


def obstacle(
    lever: Lever,
    case: ModelCase,
    *,
    compute_capability: tuple[int, int] | None,
    has_compiler: bool,
) -> str | None:
    """Why the lever cannot apply to the case on this machine, or None where it can."""
    pass_, device = case.workload.pass_, case.device
    precision = dict(lever.sets).get("precision", case.configuration.precision)
    reasons = (
        (pass_ not in lever.passes, f"needs the pass {' or '.join(lever.passes)}, got {pass_}"),
        (
            device not in lever.device_types,
            f"needs {' or '.join(lever.device_types)}, got {device}",
        ),
        (
            lever.needs_precision and precision not in lever.needs_precision,
            f"needs the precision {' or '.join(lever.needs_precision)}, got {precision}",
        ),
        (
            device == "cuda"
            and lever.min_compute_capability is not None
            and compute_capability is not None
            and compute_capability < lever.min_compute_capability,
            f"needs compute capability {lever.min_compute_capability}, got {compute_capability}",
        ),
        (lever.needs == "compiler" and not has_compiler, "needs a C++ compiler on the PATH"),
    )
    return next((reason for failed, reason in reasons if failed), None)
