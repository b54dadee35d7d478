"""A real model as levers leave it, read over real text: weights, and keys and values, in fewer bits.

A way is "WEIGHTS, CACHE" by the values of their axes, as "int4:128, int8". The numbers are those that kernels
multiply, in the type that the device computes in; its speed is not that of a kernel.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch

from peakward.lab.inference.pretrained import load
from peakward.lab.models.decoder import Decoder
from peakward.lab.quality import weights
from peakward.lab.quality.caches import TYPES
from peakward.lab.quality.score import Work, chosen, stretches
from peakward.levers import kv_cache
from peakward.levers.weights import INT4_GROUP
from peakward.records.case import QualityCase, StoredWeights
from peakward.records.errors import PeakwardError

Change = Callable[[Decoder, Any], None]
WEIGHTS: dict[StoredWeights, Change | None] = {
    "dense": None,
    "int8": weights.to_int8,
    "int4:128": partial(weights.to_int4, group=INT4_GROUP),
}
WAYS = tuple(f"{each}, {kept}" for each, kept in product(WEIGHTS, ("static", *kv_cache.STORED)))


def build(case: QualityCase) -> Work:
    """Loads the model and rounds it; sizes are the rows that are read, and their tokens.

    Raises:
        PeakwardError: no model, or what `pretrained.load` and `score.stretches` raise.
    """
    rows, length = chosen(case, WAYS, "rows", "length")
    if case.model is None:
        raise PeakwardError("expected a real model to read a text with, got none: name one")
    found = load(case.model, attention="sdpa", device=case.device, dtype=torch.float32)
    ids = stretches(case, found.words.encode, rows, length + 1)
    n_parameters = sum(each.numel() for each in found.model.parameters())
    name, _, kept = case.way.partition(", ")
    change = WEIGHTS[name]  # type: ignore[index]
    if change is not None:
        change(found.model, None)
    model = found.model.to(TYPES[case.device])
    stored = kv_cache.STORED.get(kept)  # type: ignore[call-overload]
    if stored is None:
        return weights.read_by(model, ids, n_parameters)
    reader = weights.through_cache(model, getattr(torch, stored), case.device, length)
    return weights.read_by(reader, ids, n_parameters)
