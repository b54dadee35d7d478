"""The step of decode: its operators one by one, or in a few kernels of Peakward's own."""

from peakward.levers.axis import Axis, CodeHint, ComputeCapability, KernelSpeed, not_seen
from peakward.levers.weights import INT4_GROUP, QUANTISED
from peakward.records.case import ConfiguredCase, KeptCache, ModelCase, StoredWeights
from peakward.records.lever import Lever
from peakward.records.model_shape import ModelShape

MOST_TOKENS = 16
"""The new tokens that a fused step takes at most: the narrow side of one product on tensor cores."""
MOST_SEQUENCES: dict[StoredWeights, int] = {"dense": 4}
"""The sequences that it is measured to be faster for; beside other weights one. Of `2.7B` behind 1,024
positions on an H200 it makes, in tokens/s beside separate kernels, at batch 2, 4, 8 and 16: in bf16 707 for
635, 1,297 for 1,213, 2,220 for 2,238, 3,490 for 3,673; in int8 568 for 652, 1,034 for 1,238, 1,868 for 2,293,
2,736 for 3,812; in int4 592 for 890, 1,088 for 1,753, 1,857 for 2,908, 2,916 for 4,211
(`2026-11-28-h200-kernel-trials-decode-rows-3`). Four on a cache in int8 beside bf16 weights take 2,885 µs for
3,192 behind 1,024 positions and 3,549 for 3,791 behind 4,096 (`2026-11-29-h200-decode-speed-batch-4`)."""
CHECKED: frozenset[StoredWeights] = frozenset({"dense"})
"""The weights beside which it is measured to be faster for several new tokens of a sequence, on a cache in
the type of activations: there, in bf16, five took 2,967 µs for 3,431 by the cuts before those of today's rule
(`2026-11-28-h200-kernel-trials-decode-rows`)."""
WIDEST = 4096
"""The largest d_model that it is measured to be faster for, in tokens/s beside separate kernels at 1,024
positions (`2026-11-27-h100-decode-speed`, `…-h200-…`). Of dense, int8 and int4 weights, on an H100: `small`
(768) 4,108 for 1,780, 3,631 for 2,104, 3,716 for 2,013; `2.7B` (2,560) 371 for 269, 582 for 377, 706 for
448; Llama-2-7B (4,096) 190 for 163, 356 for 270, 454 for 352."""


EMBEDDED, ATTENTION = "decode_step_embedded", "decode_step_attention"
ATTENTION_TO_INT8 = f"{ATTENTION}_int8"
_PRODUCT = "decode_step_product"
KERNELS = {
    EMBEDDED: KernelSpeed(is_measured=True),
    ATTENTION: KernelSpeed(factor=1.2, start_s=2.2e-6, is_measured=True),
    ATTENTION_TO_INT8: KernelSpeed(factor=1.42, start_s=5.0e-6, is_measured=True),
    _PRODUCT: KernelSpeed(factor=0.94, start_s=0.7e-6, is_measured=True),
    f"{_PRODUCT}_of_rows": KernelSpeed(factor=1.15, start_s=3.4e-6, is_measured=True),
    f"{_PRODUCT}_int8": KernelSpeed(factor=1.05, start_s=0.3e-6, is_measured=True),
    f"{_PRODUCT}_int4": KernelSpeed(factor=1.42, start_s=0.1e-6, is_measured=True),
}
"""Fitted to whole steps on an H200: of `2.7B`, Llama-2-7B and `small` behind 1,024 positions in three kinds
of weights, of `2.7B` behind 4,096 and 16,384 on two caches, of four rows (`2026-11-29-h200-decode-speed-2`,
`…-caches-3`, `…-batch-4`). Told so, these 25 err by 1.4% in the median, by 9.6% at most. Of the steps that
are stored of an H100 none runs in the kernels as they are now."""


def product(bits: int | None, *, n_rows: int) -> str:
    """The operator of a product with weights of so many bits, or dense ones, beside rows of activations."""
    if bits is None:
        return _PRODUCT if n_rows == 1 else f"{_PRODUCT}_of_rows"
    return f"{_PRODUCT}_int{bits}"


def is_fused(case: ModelCase) -> bool:
    """Whether the case's step runs in the fused kernels."""
    return AXIS.value(case.configuration) == "fused"


def model_obstacle(shape: ModelShape, weights: StoredWeights) -> str | None:
    """Why the fused kernels do not compute a step of such a model, or None where they do."""
    in_word = 2 if weights == "dense" else 4
    group = None if weights == "dense" else QUANTISED[weights].format.group_size
    widths = [shape.d_model, shape.n_heads * shape.head_dim, shape.d_ff]
    return _first_unmet(
        {
            "RMSNorm": (shape.norm == "rmsnorm", shape.norm),
            "RoPE": (shape.positions == "rope", shape.positions),
            "a gated silu": (shape.gated and shape.activation == "silu", shape.activation),
            "a dense model": (shape.n_experts == 1, f"{shape.n_experts} experts"),
            "no biases but those of queries, keys and values": (not shape.bias, "biases on all"),
            "no window": (shape.window is None, shape.window),
            "widths in whole words of 32 bits": (
                not any(each % in_word for each in widths),
                widths,
            ),
            f"a scale for {INT4_GROUP} inputs": (group in (None, INT4_GROUP), f"weights {weights}"),
            "an even head_dim": (shape.head_dim % 2 == 0, shape.head_dim),
        }
    )


def guesses_obstacle(weights: StoredWeights, kv_cache: KeptCache) -> str | None:
    """Why the fused step does not take several new tokens of a sequence (a text's next one and its guesses),
    or None where it does."""
    return _first_unmet(
        {
            f"{' or '.join(sorted(CHECKED))} weights beside guesses: of others it is not measured to be "
            "faster": (weights in CHECKED, f"weights {weights}"),
            "keys and values in the compute type beside guesses: in others it is not measured to be faster": (
                kv_cache == "static",
                f"kv-cache {kv_cache}",
            ),
        }
    )


def _obstacle(case: ConfiguredCase, _capability: ComputeCapability | None) -> str | None:
    if not isinstance(case, ModelCase):
        return None
    shape, configuration, n_rows = case.model, case.configuration, case.workload.batch_size
    most = MOST_SEQUENCES.get(configuration.weights, 1)
    return model_obstacle(shape, configuration.weights) or _first_unmet(
        {
            "keys and values in the compute type or in int8": (
                configuration.kv_cache in ("static", "int8"),
                f"kv-cache {configuration.kv_cache}",
            ),
            "blocks that are not compiled": (
                configuration.compile == "none",
                f"compile {configuration.compile}",
            ),
            f"a batch of at most {most} beside {configuration.weights} weights: of larger ones it is not "
            "measured to be faster": (
                n_rows <= most,
                n_rows,
            ),
            f"a d_model of at most {WIDEST}: of wider models it is not measured to be faster": (
                shape.d_model <= WIDEST,
                shape.d_model,
            ),
        }
    )


def _first_unmet(needs: dict[str, tuple[bool, object]]) -> str | None:
    """Says the first thing that is needed and not there, by whether each is there and what was got."""
    for needed, (is_there, got) in needs.items():
        if not is_there:
            return f"decode-step fused needs {needed}, got {got}"
    return None


AXIS = Axis(
    name="decode_step",
    default="separate",
    help="A step of decode: separate (operator by operator), or fused in five of Peakward's own kernels a "
    "layer, whatever the settings of attention, norm, RoPE and SwiGLU.",
    replaces=("attention", "norm", "rope", "swiglu"),
    levers=(
        Lever(
            name="fused-step",
            summary="a step of decode in five kernels a layer, each launched while the one before still runs",
            sets=(("decode_step", "fused"),),
            numerics="reordered",
            usual_speedup=1.5,
            passes=("decode",),
            device_types=("cuda",),
            vendors=("nvidia",),
            min_compute_capability=(9, 0),
            needs_precision=("bf16",),
        ),
    ),
    obstacle=_obstacle,
    hints={
        "fused": CodeHint(
            module="is of Peakward's decoder: peakward.lab.inference.fused_step.FusedStep is the step for one"
        ),
    },
    called="step of decode",
    leaves_alone=("optimizer",),
    unseen=not_seen("a capture has the operators that the module calls"),
    predicted={"cuda": ("fused",)},
    kernels={f"peakward.{name}": speed for name, speed in KERNELS.items()},
    own_kernels=("fused",),
)
