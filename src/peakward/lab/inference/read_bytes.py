"""The bytes that a step of generation must read, whatever computes it."""

from collections.abc import Iterable

import torch
from torch import nn

from peakward.lab.inference.pretrained import AnyModel
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.layers import QuantisedLinear
from peakward.levers.kv_cache import SCALE_BYTES


def step_bytes(
    model: AnyModel,
    positions: float,
    draft: "AnyModel | None",
    guesses: int,
    stored: torch.dtype | None,
) -> float | None:
    """The bytes that a step must read: weights, the keys and values in reach, and a draft's weights for each
    guess. None where they are not known (`TransformersModel.countable`).

    Args:
        positions: what a step attends to, over all prompts.
        stored: the type of keys and values where it is not that of weights.
    """
    models = [model] if draft is None else [model, *[draft] * guesses]
    if not all(isinstance(each, Decoder) or each.countable for each in models):
        return None
    shape = model.shape
    per_position = shape.kept_elements * (stored or model.embedding.weight.dtype).itemsize
    if stored is not None:
        per_position += 2 * shape.n_layers * shape.n_kv_heads * SCALE_BYTES
    read = sum(
        weight_bytes([each] if isinstance(each, Decoder) else each.computing) for each in models
    )
    return read + positions * per_position


def weight_bytes(parts: Iterable[nn.Module]) -> int:
    """The bytes of weights that a pass over one token reads.

    They are the parameters of all modules but embeddings, because a pass reads only a row of an embedding
    for each token. A head reads its whole matrix, also where that matrix is the embedding's. Quantised
    weights are buffers of their layers. A tensor that several modules share counts once.

    Args:
        parts: the modules that the pass goes through, with all that are inside them.
    """
    read = {
        id(each): each.nbytes
        for part in parts
        for module in part.modules()
        if not isinstance(module, nn.Embedding)
        for each in (
            *module.parameters(recurse=False),
            *(module.buffers(recurse=False) if isinstance(module, QuantisedLinear) else ()),
        )
    }
    return sum(read.values())
