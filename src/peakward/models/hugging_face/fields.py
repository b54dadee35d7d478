"""The values that a field of a configuration may hold."""

from typing import Annotated

import msgspec

from peakward.models.presets import LARGEST
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import Activation

Vocabulary = Annotated[int, msgspec.Meta(ge=1, le=LARGEST["vocab_size"])]
Positions = Annotated[int, msgspec.Meta(ge=1, le=LARGEST["max_seq_len"])]
Layers = Annotated[int, msgspec.Meta(ge=1, le=LARGEST["n_layers"])]
Width = Annotated[int, msgspec.Meta(ge=1, le=LARGEST["d_model"])]
InnerWidth = Annotated[int, msgspec.Meta(ge=1, le=LARGEST["d_ff"])]
HeadWidth = Annotated[int, msgspec.Meta(ge=1, le=LARGEST["head_dim"])]
Heads = Annotated[int, msgspec.Meta(ge=1, le=LARGEST["n_heads"])]
Experts = Annotated[int, msgspec.Meta(ge=1, le=LARGEST["n_experts"])]
Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e30)]

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
}
"""The activations of `ModelShape`, by their `ACT2FN` key in transformers."""


def activation(name: str) -> Activation:
    """The activation of that `ACT2FN` key.

    Raises:
        PeakwardError: No shape has it.
    """
    if name not in ACTIVATIONS:
        raise PeakwardError(
            f"expected an activation of {', '.join(ACTIVATIONS)}, got {name[:40]!r}, "
            "which no model shape has: take the module itself to pw.predict or pw.measure_step"
        )
    return ACTIVATIONS[name]
