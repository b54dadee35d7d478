"""A model whose weights are kept in fewer bits, read over real text: what each way of rounding loses.

The text's first rows are read, and those behind them are seen: by calibration and by fine-tuning, which no
other way needs. The model is a real one, or a decoder of bytes that is first trained on the text's beginning.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from peakward.kernels.ops.quantized_matmul import calibrated, reference
from peakward.lab.inference import quantised
from peakward.lab.inference.pretrained import load
from peakward.lab.inference.quantised import block_by_block, int4_rounded, linears
from peakward.lab.inference.sequences import ContiguousCache
from peakward.lab.models import torchao_weights
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.layers import SCALE_DTYPE
from peakward.lab.quality import caches, positions
from peakward.lab.quality.caches import READ_GROUP, STRETCH, TYPES
from peakward.lab.quality.score import Score, Times, Work, by_stretch, chosen, stretches
from peakward.records.case import QualityCase
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Losses, Quality

BATCH = 4
"""Rows of a step of fine-tuning."""
RATE = 1e-4
"""AdamW's first rate of fine-tuning, which falls to 0 by a straight line. Of SmolLM2-135M, 12 steps at 3e-5
left int4 0.27 nats a token behind the dense model fine-tuned alike, at 1e-4 0.20."""


class Given(NamedTuple):
    """The text and the steps that a way may learn from."""

    seen: Tensor
    """(rows, length + 1), none of which is read."""
    steps: int
    """The steps of fine-tuning."""


Change = Callable[[Decoder, Given], None]
"""Rounds the weights of a model in fp32, in place."""


class Way(NamedTuple):
    """How weights are kept, and whether keys and values are of int8."""

    change: Change
    bits: int
    """The bits of an element of the blocks' matrices."""
    int8_cache: bool = False
    scale_bytes: int = SCALE_DTYPE.itemsize
    """The bytes of the scale of a group or an output, with its offset."""


def build(case: QualityCase) -> Work:
    """Makes the model; sizes are the rows that are read, their tokens, the rows that are seen, and the steps
    of fine-tuning.

    Raises:
        PeakwardError: what `pretrained.load`, `positions.tokens` and `score.stretches` raise, or a model
            whose widths the groups of int4 do not divide.
    """
    rows, length, n_seen, steps = chosen(case, WAYS, "rows", "length", "seen", "steps")
    model, ids, seen = _model(case, rows, length, n_seen)
    way, n_parameters = WAYS[case.way], sum(each.numel() for each in model.parameters())
    n_bytes = weight_bytes(model, way.bits, scale_bytes=way.scale_bytes)
    way.change(model, Given(seen, steps))
    model.to(TYPES[case.device]).eval().requires_grad_(False)
    reader = through_cache(model, torch.int8, case.device, length) if way.int8_cache else model
    return read_by(reader, ids, n_parameters, weight_bytes=n_bytes)


def _model(
    case: QualityCase, rows: int, length: int, n_seen: int
) -> tuple[Decoder, Tensor, Tensor]:
    """The model in fp32, the rows that are read and those that are seen, each of length + 1 tokens."""
    if case.model is not None:
        found = load(case.model, attention="sdpa", device=case.device, dtype=torch.float32)
        every = stretches(case, found.words.encode, rows + n_seen, length + 1)
        model, ids, seen = found.model, every[:rows], every[rows:]
    else:
        model, ids = caches.trained(case, rows, length)
        every, _ = positions.tokens(case, length, n_rows=rows)
        if len(every) < (n_needed := n_seen * (length + 1)):
            raise PeakwardError(
                f"expected a text of {n_needed:,} bytes and a tenth more, got {len(every):,} to train on in "
                f"{case.text.name}: name a longer one"
            )
        model, seen = model.float(), every[:n_needed].view(n_seen, length + 1)
    for each in linears(model.blocks):
        if each.in_features % READ_GROUP:
            raise PeakwardError(
                f"expected a model whose matrices have inputs in groups of {READ_GROUP}, got "
                f"{each.in_features} in {model.shape.name}: take another"
            )
    return model, ids, seen


def weight_bytes(model: Decoder, bits: int, *, scale_bytes: int = SCALE_DTYPE.itemsize) -> int:
    """All weights with the blocks' matrices in so many bits, and the others in 16."""
    every = sum(each.numel() for each in model.parameters())
    in_blocks = linears(model.blocks)
    stored = sum(each.weight.numel() for each in in_blocks)
    scales = {16: 0, 8: sum(each.out_features for each in in_blocks), 4: stored // READ_GROUP}
    return 2 * (every - stored) + stored * bits // 8 + scale_bytes * scales[bits]


Reader = Callable[[Tensor], Tensor]
"""Reads rows of tokens, (rows, length) → (rows, length, vocab)."""


def read_by(
    reader: Reader, ids: Tensor, n_parameters: int, *, weight_bytes: int | None = None
) -> Work:
    """The work of reading rows (rows, length + 1), one a step."""

    def run(told: Callable[[int], None]) -> Score:
        times = Times(ids.device.type, told)
        losses = by_stretch(read(reader, ids, times), STRETCH)
        each = Losses(where="each row from its beginning", losses=losses)
        return Score(times.run, Quality(losses=(each,), weight_bytes=weight_bytes))

    return Work(n_parameters, len(ids), run)


@torch.inference_mode()
def read(reader: Reader, ids: Tensor, times: Times) -> Tensor:
    """The loss of each token behind the first, (rows, length), a row a step.

    Raises:
        PeakwardError: losses that are not finite, of which no interval can be made.
    """
    losses = []
    for row in ids.split(1):
        logits = times.step(partial(reader, row[:, :-1]))
        losses.append(F.cross_entropy(logits[0].float(), row[0, 1:], reduction="none"))
    found = torch.stack(losses)
    if n_bad := int((~found.isfinite()).sum()):
        raise PeakwardError(
            f"expected finite losses, got {n_bad:,} of {found.numel():,} that are not: look at the model's "
            "weights, or keep them and the cache in more bits"
        )
    return found


def through_cache(model: Decoder, stored: torch.dtype, device: str, length: int) -> Reader:
    """Reads one row; each token attends to keys and values as they are stored in a byte an element."""
    cache = ContiguousCache(
        model.shape,
        n_rows=1,
        capacity=length,
        stored=stored,
        device=device,
        dtype=TYPES[device],
    )

    def reader(ids: Tensor) -> Tensor:
        cache.release(0)
        # The tokens of an empty row would attend among themselves, and not to what is stored.
        parts = (ids[:, :1], ids[:, 1:])
        found = [cache.all_logits(model, ids, slice(0, 1), n_logits=ids.shape[1]) for ids in parts]
        return torch.cat(found, dim=1)

    return reader


def _as_they_are(_model: Decoder, _given: Given) -> None:
    pass


def to_int8(model: Decoder, _given: Given) -> None:
    """Rounds to nearest with a scale for each output."""
    for each in linears(model.blocks):
        stored, scale = reference.int8_weight(each.weight.data)
        each.weight.data = reference.int8_dequantized(
            stored, scale.to(SCALE_DTYPE), each.weight.dtype
        )


def to_int4(model: Decoder, _given: Given, *, group: int = READ_GROUP) -> None:
    """Rounds to nearest in groups of so many inputs."""
    quantised.round_int4(model, group=group)


def calibrate(model: Decoder, given: Given, *, group: int = READ_GROUP) -> None:
    """Rounds to int4, in groups of so many inputs, by what the seen text makes of these."""
    quantised.calibrate(model, given.seen[:, :-1], group=group)


def to_int8_of_torchao(model: Decoder, _given: Given) -> None:
    """As torchao rounds, with a scale for each output."""
    for each in linears(model.blocks):
        each.weight.data = torchao_weights.int8_rounded(each.weight.data)


def to_int4_of_torchao(model: Decoder, _given: Given) -> None:
    """As torchao rounds, in groups with a scale and an offset."""
    for each in linears(model.blocks):
        each.weight.data = torchao_weights.int4_rounded(each.weight.data, group=READ_GROUP)


class Int8Activations(nn.Module):
    """A linear layer in int8 with a scale for each output, whose inputs are rounded to int8 row by row."""

    stored: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        stored, scale = reference.int8_weight(linear.weight.data)
        self.register_buffer("stored", stored)
        self.register_buffer("scale", scale.to(SCALE_DTYPE))
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """(…, in_features) → (…, out_features)."""
        y = calibrated.int8_by_int8(x, self.stored, self.scale)
        return y if self.bias is None else y + self.bias


def to_int8_activations(model: Decoder, _given: Given) -> None:
    """Rounds weights and, as they come, inputs to int8."""
    for block in model.blocks:
        for name, module in list(block.named_modules()):
            if type(module) is nn.Linear:
                parent, _, own = name.rpartition(".")
                setattr(block.get_submodule(parent), own, Int8Activations(module))


def smooth(model: Decoder, given: Given) -> None:
    """Moves outliers of inputs into the weights, which changes nothing yet: what a norm gives is divided in
    the norm, and what a gate's product gives, in the rows of the up projection."""
    largest: dict[nn.Linear, Tensor] = {}

    def hear(linear: nn.Linear, inputs: Tensor) -> None:
        found = inputs.abs().flatten(0, -2).amax(0)
        known = largest.get(linear)
        largest[linear] = found if known is None else torch.maximum(known, found)

    def change(block: Any) -> None:
        attention, ff = block.attention, block.ff
        for norm, linear in ((block.attention_norm, attention.qkv), (block.ff_norm, ff.up)):
            factors = calibrated.smoothing(largest[linear], linear.weight)
            linear.weight.mul_(factors)
            for each in norm.parameters():
                each.div_(factors)
        if ff.gated:
            factors = calibrated.smoothing(largest[ff.down], ff.down.weight)
            ff.down.weight.mul_(factors)
            for each in ff.up.parameters():
                each[len(factors) :].transpose(0, -1).div_(factors)

    block_by_block(model, given.seen[:, :-1], hear, change)


def smoothed(model: Decoder, given: Given) -> None:
    """As `to_int8_activations`, of smoothed inputs."""
    smooth(model, given)
    to_int8_activations(model, given)


def fine_tune(model: Decoder, given: Given) -> None:
    """Steps of AdamW on the seen rows, in their order; embeddings and head stay."""
    model.requires_grad_(False).train()
    model.blocks.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.blocks.parameters(), lr=RATE, weight_decay=0.0)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=given.steps)
    batches = given.seen.split(BATCH)
    for at in range(given.steps):
        ids = batches[at % len(batches)]
        optimizer.zero_grad(set_to_none=True)
        model(ids[:, :-1], ids[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.blocks.parameters(), 1.0)
        optimizer.step()
        falling.step()


class StraightThrough(nn.Module):
    """A weight as int4 rounds it, with the gradient of one that is not rounded (Bengio et al. 2013,
    "Estimating or Propagating Gradients Through Stochastic Neurons")."""

    def forward(self, weight: Tensor) -> Tensor:
        """(n, k) → (n, k)."""
        return weight + (int4_rounded(weight, group=READ_GROUP) - weight).detach()


def fine_tune_int4(model: Decoder, given: Given) -> None:
    """As `fine_tune`, of a model whose every pass has its weights rounded, and which keeps them so."""
    each_linear = linears(model.blocks)
    for each in each_linear:
        parametrize.register_parametrization(each, "weight", StraightThrough())
    fine_tune(model, given)
    for each in each_linear:
        parametrize.remove_parametrizations(each, "weight", leave_parametrized=True)


WAYS: dict[str, Way] = {
    "dense": Way(_as_they_are, 16),
    "int8": Way(to_int8, 8),
    "int4": Way(to_int4, 4),
    "int4, calibrated": Way(calibrate, 4),
    "int4, calibrated, int8 cache": Way(calibrate, 4, int8_cache=True),
    "int8, torchao": Way(to_int8_of_torchao, 8),
    "int4, torchao": Way(to_int4_of_torchao, 4, scale_bytes=2 * SCALE_DTYPE.itemsize),
    "int8 activations": Way(to_int8_activations, 8),
    "int8 activations, smoothed": Way(smoothed, 8),
    "dense, fine-tuned": Way(fine_tune, 16),
    "int4, fine-tuned": Way(fine_tune_int4, 4),
}
