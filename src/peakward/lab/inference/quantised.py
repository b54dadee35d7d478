"""Real models whose blocks multiply by quantised weights, as the axis `weights` names them.

Weights are rounded from fp32, whatever the passes compute in, so that they are those by which a lever of the
same value is judged (`lab/quality/levers.py`).
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from peakward.kernels.ops.quantized_matmul import calibrated, reference
from peakward.lab.data.text import first_tokens
from peakward.lab.inference.pretrained import Pretrained, beyond, load
from peakward.lab.models.decoder import Decoder, rotation
from peakward.lab.models.layers import SCALE_DTYPE, QuantisedLinear, apply_quantised
from peakward.levers.precision import fp32_matmuls
from peakward.levers.weights import CALIBRATED, QUANTISED, SEEN, SIZES, model_obstacle
from peakward.records.case import Source, StoredWeights
from peakward.records.errors import PeakwardError

AT_ONCE = 8
"""Rows that go through a block together while it is calibrated."""
Stored = dict[nn.Linear, tuple[Tensor, Tensor]]
"""The stored form of each layer's weight, and its scales."""


def load_quantised(
    name: str,
    weights: StoredWeights,
    *,
    text: Source | None,
    attention: str,
    device: str,
    dtype: torch.dtype,
) -> Pretrained[Decoder]:
    """As `pretrained.load`, with the blocks' matrices quantised and all else in `dtype`. While they are
    rounded, the model takes four bytes a parameter.

    Args:
        weights: another value than dense.
        text: calibrated ones are rounded on `SEEN` rows of it, behind those that a lever's loss is read on;
            None of others.

    Raises:
        PeakwardError: as `load`; a model that the decoder cannot express, or whose widths the groups of
            `weights` do not divide; a text that is too short.
    """
    if (reason := beyond(name)) is not None:
        raise PeakwardError(
            f"expected a model of Peakward's decoder for weights {weights}: {reason}; transformers computes "
            "it with dense ones"
        )
    found = load(name, attention=attention, device=device, dtype=torch.float32)
    model = found.model
    if (reason := model_obstacle(model.shape, weights)) is not None:
        raise PeakwardError(f"expected a model whose matrices can be kept so: {reason}")
    seen = None
    if text is not None:
        n_read, length = SIZES[0], SIZES[1] + 1
        ids = first_tokens(text, found.words.encode, (n_read + SEEN) * length)
        seen = torch.from_numpy(ids).view(-1, length)[n_read:, :-1].to(device)
    # Whatever the passes multiply in: calibrated weights are rounded by what fp32 makes of a text.
    with fp32_matmuls("fp32"):
        quantise(model, weights, seen)
    for each in model.parameters():  # Scales stay as the kernels take them.
        each.data = each.data.to(dtype)
    return found


def quantise(model: Decoder, weights: StoredWeights, seen: Tensor | None) -> None:
    """Turns the linear layers of the blocks into their quantised form, in place, from the weights that they
    have.

    Args:
        seen: rows of tokens that calibrated weights are rounded on, (rows, length) of int64.
    """
    rounded: Stored = {}
    if weights in CALIBRATED:
        group = QUANTISED[weights].format.group_size
        assert seen is not None and group is not None
        rounded = calibrate(model, seen, group=group)
    apply_quantised(model.blocks, weights)
    for each in model.blocks.modules():
        if isinstance(each, QuantisedLinear):
            if each in rounded:
                each.hold(*rounded.pop(each))
            else:
                each.keep(each.weight.detach())


def linears(module: nn.Module) -> list[nn.Linear]:
    """The dense linear layers of a module."""
    return [each for each in module.modules() if type(each) is nn.Linear]


def round_int4(model: Decoder, *, group: int) -> None:
    """Rounds the blocks' matrices to nearest in int4, in place, in groups of so many inputs."""
    for each in linears(model.blocks):
        each.weight.data = int4_rounded(each.weight.data, group=group).to(each.weight.dtype)


def int4_rounded(weight: Tensor, *, group: int) -> Tensor:
    """The numbers that a weight rounded to nearest in int4 stands for, as kernels multiply by them: (n, k) of
    fp32."""
    return reference.int4_rounded(weight, group=group, scale_dtype=SCALE_DTYPE)


@torch.no_grad()
def block_by_block(
    model: Decoder,
    ids: Tensor,
    hear: Callable[[nn.Linear, Tensor], None],
    change: Callable[[Any], None],
) -> None:
    """Sends tokens (rows, length) through the blocks: `hear` is told the inputs (…, in_features) of each
    linear layer, then `change` rounds the block, and the next one is given what the rounded block makes."""
    x = model.embedding(ids)
    cos, sin = rotation(model.shape, ids.shape[1], x)
    for block in model.blocks:
        hooks = [
            each.register_forward_pre_hook(lambda linear, inputs: hear(linear, inputs[0]))
            for each in linears(block)
        ]
        for rows in x.split(AT_ONCE):
            block(rows, cos, sin, None)
        for hook in hooks:
            hook.remove()
        change(block)
        x = torch.cat([block(rows, cos, sin, None) for rows in x.split(AT_ONCE)])


def calibrate(model: Decoder, seen: Tensor, *, group: int) -> Stored:
    """Rounds the blocks' matrices to int4 in place, in groups of so many inputs, by what the seen tokens
    (rows, length) make of these, each block behind rounded ones (GPTQ, section 4).

    Returns:
        The stored forms of the numbers that the layers then have.
    """
    moments: dict[nn.Linear, Tensor] = defaultdict(float)  # type: ignore[arg-type]
    found: Stored = {}

    def hear(linear: nn.Linear, inputs: Tensor) -> None:
        rows = inputs.flatten(0, -2).float()
        moments[linear] = moments[linear] + rows.mT @ rows

    def change(block: Any) -> None:
        for each in linears(block):
            stored, scale = calibrated.int4_weight(each.weight.data, moments.pop(each), group=group)
            found[each] = stored, scale.to(SCALE_DTYPE)
            each.weight.data = reference.int4_dequantized(
                *found[each], None, each.weight.dtype, group=group
            )

    block_by_block(model, seen, hear, change)
    return found
