"""A real model as levers leave it, read over real text: weights, and keys and values, in fewer bits.

A way is "WEIGHTS, CACHE" by the values of their axes, as "int4:128, int8". The numbers are those that kernels
multiply, in the type that the device computes in; its speed is not that of a kernel.

Calibrated weights are rounded for the inputs that `SEEN` rows of the text make, which lie behind those that
are read: none of these is read.
"""

from functools import partial
from itertools import product

import torch

from peakward.lab.inference.pretrained import load
from peakward.lab.quality import weights
from peakward.lab.quality.caches import TYPES
from peakward.lab.quality.score import Work, chosen, stretches
from peakward.levers import kv_cache
from peakward.levers.weights import CALIBRATED, INT4_GROUP, SEEN
from peakward.records.case import QualityCase, StoredWeights
from peakward.records.errors import PeakwardError

WEIGHTS: dict[StoredWeights, weights.Change | None] = {
    "dense": None,
    "int8": weights.to_int8,
    "int4:128": partial(weights.to_int4, group=INT4_GROUP),
    "int4:128-calibrated": partial(weights.calibrate, group=INT4_GROUP),
    "int4:32-calibrated": partial(weights.calibrate, group=32),
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
    name, _, kept = case.way.partition(", ")
    n_seen = SEEN if name in CALIBRATED else 0
    every = stretches(case, found.words.encode, rows + n_seen, length + 1)
    ids, seen = every[:rows], every[rows:]
    n_parameters = sum(each.numel() for each in found.model.parameters())
    change = WEIGHTS[name]  # type: ignore[index]
    if change is not None:
        change(found.model, weights.Given(seen, steps=0))
    model = found.model.to(TYPES[case.device])
    stored = kv_cache.STORED.get(kept)  # type: ignore[call-overload]
    if stored is None:
        return weights.read_by(model, ids, n_parameters)
    reader = weights.through_cache(model, getattr(torch, stored), case.device, length)
    return weights.read_by(reader, ids, n_parameters)
