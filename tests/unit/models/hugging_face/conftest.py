"""transformers' own models, to hold shapes to."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.models.decoder import Decoder
from peakward.models.hugging_face.shape import shape_of

Agrees = Callable[[type, dict[str, Any]], None]


def counted(model: torch.nn.Module) -> tuple[int, int]:
    """Elements of its matrices, and of its vectors: biases and norms."""
    parameters = list(model.parameters())
    matrices = sum(each.numel() for each in parameters if each.dim() > 1)
    return matrices, sum(each.numel() for each in parameters) - matrices


@pytest.fixture
def agrees() -> Agrees:
    """That what transformers builds from the settings has the shape's matrices and vectors, and
    that their `config.json` means the same with its defaults written out as with them left out."""

    def check(kind: type, settings: dict[str, Any]) -> None:
        config = kind(**settings)
        shape = shape_of({"model_type": kind.model_type, **settings}, "theirs")
        assert shape_of(config.to_dict(), "theirs") == shape
        assert shape_of(config.to_diff_dict(), "theirs") == shape
        with torch.device("meta"):
            theirs = transformers.AutoModelForCausalLM.from_config(config)
            ours = Decoder(shape, implementation("naive"))
        assert counted(ours) == counted(theirs)

    return check
