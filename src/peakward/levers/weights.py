"""Weights: the blocks' matrices as they are, or quantised for passes without gradients.

Calibrated ones are rounded for the inputs that a real model's text makes (GPTQ). They have the form of those
rounded to nearest and run in the same kernels, so that a step is timed and its arithmetic checked with random
weights rounded to nearest. What calibration is for, the loss of the real model, is measured on its text
(`lab/quality/levers.py`); a text is generated with the weights themselves (`lab/inference/quantised.py`).
"""

from typing import Literal, get_args

import msgspec

from peakward.levers.axis import WITHOUT_GRADIENTS, Axis, CodeHint, ComputeCapability, not_seen
from peakward.records.case import ConfiguredCase, DeviceType, ModelCase, Source, StoredWeights
from peakward.records.inference import WeightFormat
from peakward.records.lever import Lever
from peakward.records.model_shape import ModelShape
from peakward.records.op_graph import Operand

INT4_GROUP = 128
"""Inputs that share a scale of int4:128."""
INT4_TILE = 128
"""Inputs that are stored together, whatever shares a scale (`quantized_matmul.reference.packed`)."""
TEXT = Source("python-topics")
"""The text by which weights and caches in fewer bits are judged beside a real model, and on whose next rows
calibrated weights are rounded. It comes with Python."""
SIZES = (32, 256)
"""The rows of it that are read to judge, and the tokens of a row."""
SEEN = 256
"""The rows behind them that calibration sees. In groups of 32, 64 of them left SmolLM2-135M 0.038 nats a
token behind dense and these 0.033; moved off the grid of its own 4 bits, 0.048 and 0.040."""
NOT_OF_FP8 = ("fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16")


class Quantised(msgspec.Struct, frozen=True, kw_only=True):
    """How a value keeps a matrix, and the operator that multiplies by it."""

    operator: str
    format: WeightFormat
    bits: int
    chunk_bytes: float
    """While a matrix is quantised, temporary bytes for an element of a chunk, with the stored form of the
    chunk before (by torch's profiler on a CPU); 4 more where the matrix is first made fp32."""

    def kept(self, n_in: int, n_out: int) -> tuple[Operand, Operand]:
        """The elements of a matrix (n_out, n_in), and their scales."""
        group = self.format.group_size
        if group is None:
            scale = Operand(shape=(1, n_out), dtype="bfloat16")
            return Operand(shape=(n_out, n_in), dtype="int8"), scale
        words = (-(-n_in // INT4_TILE), n_out, INT4_TILE * self.bits // 32)
        scale = Operand(shape=(-(-n_in // group), n_out), dtype="bfloat16")
        return Operand(shape=words, dtype="int32"), scale


def _int4(group: int) -> Quantised:
    return Quantised(
        operator="peakward.int4_matmul",
        format=WeightFormat(type="int4", group_size=group),
        bits=4,
        chunk_bytes=28.4 + 12 / group,
    )


QUANTISED: dict[StoredWeights, Quantised] = {
    "int8": Quantised(
        operator="peakward.int8_matmul",
        format=WeightFormat(type="int8"),
        bits=8,
        chunk_bytes=9,
    ),
    "int4:128": _int4(INT4_GROUP),
    "int4:128-calibrated": _int4(INT4_GROUP),
    "int4:32-calibrated": _int4(32),
}
CALIBRATED: frozenset[StoredWeights] = frozenset(
    each for each in QUANTISED if each.endswith("-calibrated")
)
"""Those that are rounded for the inputs that a text makes."""


def _lever(
    name: str,
    summary: str,
    value: StoredWeights,
    needs: Literal["real weights"] | None = None,
    *,
    device_types: tuple[DeviceType, ...] = ("cuda",),
) -> Lever:
    return Lever(
        name=name,
        summary=summary,
        sets=(("weights", value),),
        numerics="approximate",
        passes=WITHOUT_GRADIENTS,
        device_types=device_types,
        vendors=("nvidia",),
        min_compute_capability=(8, 0),
        needs_precision=NOT_OF_FP8,
        needs=needs,
    )


def _obstacle(case: ConfiguredCase, _capability: ComputeCapability | None) -> str | None:
    if not isinstance(case, ModelCase):
        return None
    configuration = case.configuration
    said = f"weights {configuration.weights}"
    if case.workload.trains:
        return (
            f"{said} have no gradient: needs forward, prefill or decode, got {case.workload.pass_}"
        )
    if configuration.precision == "fp8":
        return f"{said} are widened to the type of what they multiply, got fp8: take bf16-mixed"
    return model_obstacle(case.model, configuration.weights)


def model_obstacle(shape: ModelShape, weights: StoredWeights) -> str | None:
    """Why the matrices of such a model cannot be kept so, or None where they can."""
    if weights == "dense":
        return None
    said = f"weights {weights}"
    if shape.n_experts > 1:
        return f"{said} are of linear layers, got a mixture of {shape.n_experts} experts"
    group = QUANTISED[weights].format.group_size
    if group is None:
        return None
    inputs = {
        "d_model": shape.d_model,
        "n_heads · head_dim": shape.n_heads * shape.head_dim,
        "d_ff": shape.d_ff,
    }
    for name, n in inputs.items():
        if n % group:
            return f"{said} need {name} in whole groups of {group}, got {n}; int8 takes any"
    return None


def _hint(value: StoredWeights) -> CodeHint:
    call = QUANTISED[value].operator.removeprefix("peakward.")
    rounded = (
        ", with what peakward.kernels.ops.quantized_matmul.calibrated.int4_weight makes of its weight"
        if value in CALIBRATED
        else ""
    )
    return CodeHint(
        module=f"is a choice of each layer: call peakward.kernels.{call} in the place of its product"
        f"{rounded}"
    )


AXIS = Axis(
    name="weights",
    default="dense",
    help="The blocks' matrices, of passes without gradients: dense, int8 (a scale for each output; a CPU has "
    "it too), int4:128 (for each 128 inputs), or int4:128-calibrated and int4:32-calibrated (rounded for the "
    "inputs that a text makes of a real model; random weights are rounded to nearest). A plan of serving "
    "takes fp32, bf16 or fp16 (all weights), or fp8, int8 or int4 (embedding, head and norms stay in 16 "
    "bits), as TYPE or TYPE:GROUP; where it is not given, the type of the precision.",
    metavar="TYPE,…",
    levers=(
        _lever(
            "int8-weights",
            "the blocks' matrices in 8 bits with a scale an output, widened as they are multiplied",
            "int8",
            device_types=("cpu", "cuda"),
        ),
        _lever(
            "int4-weights",
            "the blocks' matrices in 4 bits with a scale for 128 inputs, widened as they are multiplied",
            "int4:128",
        ),
        _lever(
            "int4-calibrated",
            "the blocks' matrices in 4 bits with a scale for 128 inputs, rounded for the inputs that a text "
            "makes (GPTQ)",
            "int4:128-calibrated",
            "real weights",
        ),
        _lever(
            "int4-calibrated-32",
            "the same with a scale for 32 inputs, which rounds nearer and divides more widths",
            "int4:32-calibrated",
            "real weights",
        ),
    ),
    obstacle=_obstacle,
    hints={each: _hint(each) for each in QUANTISED},
    called="weights",
    unseen=not_seen("a capture has the products that the module calls"),
    predicted={"cpu": ("int8",), "cuda": get_args(StoredWeights)},
    own_kernels=tuple(QUANTISED),
)
