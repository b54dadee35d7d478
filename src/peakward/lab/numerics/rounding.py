"""A model's activations, weights and gradients rounded to number formats, and how far that takes them.

The model is a decoder of bytes that is trained briefly on real text, or SmolLM2 with its own weights. One
batch of text is then computed in fp64, and what goes into each linear layer of the blocks, its weight and the
gradient that comes back into it are rounded.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.inference.pretrained import SMOLLM2, load
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.decoder import build as build_decoder
from peakward.lab.quality import positions
from peakward.lab.quality.score import Times, stretches
from peakward.records.case import NumericsCase, QualityCase
from peakward.records.errors import PeakwardError
from peakward.records.numerics import Numerics, Rounded, Rounding

TRAINED = "trained"
WAYS = (TRAINED, SMOLLM2)
GROUP = 64
"""Elements of a row that share a scale: 64 divides all widths of SmolLM2, 128 does not."""
FLOATS = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8 e4m3": torch.float8_e4m3fn,
    "fp8 e5m2": torch.float8_e5m2,
}
LARGEST = {"int8": 127.0, "int4": 7.0}
"""Integers are taken with as many steps below 0 as above."""
TF32_DROPPED_BITS = 13
"""tf32 keeps 10 of fp32's 23 bits of mantissa."""
SCALINGS: dict[str, tuple[str, ...]] = {
    "fp32": ("none",),
    "tf32": ("none",),
    "bf16": ("none",),
    "fp16": ("none", "tensor"),
    "fp8 e4m3": ("none", "tensor"),
    "fp8 e5m2": ("none", "tensor"),
    "int8": ("tensor", "groups"),
    "int4": ("tensor", "groups"),
}
"""An integer without a scale is 0 for most of these tensors."""
Tensors = dict[Rounded, list[Tensor]]


def look_at_roundings(case: NumericsCase) -> Numerics:
    """Rounds the tensors of one batch to every format. Sizes are of the trained decoder layers, width,
    length, sequences of a batch and steps of training; of SmolLM2 the sequences and their length.

    Raises:
        PeakwardError: another way, other sizes, no text, or what `pretrained.load` and `positions.tokens`
            raise.
    """
    model, ids = _trained(case) if case.way == TRAINED else _pretrained(case)
    tensors = collected(model.double(), ids)
    return Numerics(
        roundings=tuple(
            rounding_of(name, kind, scaling, tensors[kind])
            for kind in get_args(Rounded)
            for name, scalings in SCALINGS.items()
            for scaling in scalings
        )
    )


def rounding_of(name: str, kind: Rounded, scaling: Any, tensors: Sequence[Tensor]) -> Rounding:
    """Figures of tensors in fp64, each rounded to the format under that scaling."""
    squares, errors, n, zeroed, beyond = 0.0, 0.0, 0, 0, 0
    least, largest = float("inf"), 0.0
    for x in tensors:
        scaled, back = _scaled(name, scaling, x)
        rounded = round_to(name, scaled)
        there = x != 0
        magnitudes = x.abs()[there]
        if not magnitudes.numel():
            continue
        squares += float(x.square().sum())
        errors += float((rounded * back - x).square().sum())
        n += magnitudes.numel()
        zeroed += int(((rounded == 0) & there).sum())
        # A scaled tensor's largest may lie above by the rounding of its own scale.
        beyond += int((scaled.abs() > largest_of(name) * (1 + 1e-9)).sum())
        least = min(least, float(magnitudes.min()))
        largest = max(largest, float(magnitudes.max()))
    if not n:
        raise PeakwardError(f"expected {kind} that are not all 0, got none: train for more steps")
    return Rounding(
        format=name,
        of=kind,
        scaling=scaling,
        n=n,
        error=(errors / squares) ** 0.5,
        zeroed=zeroed / n,
        beyond=beyond / n,
        least=least,
        largest=largest,
    )


def round_to(name: str, x: Tensor) -> Tensor:
    """The nearest numbers of the format, in fp64; beyond its largest the largest itself."""
    top = largest_of(name)
    x = x.clamp(-top, top)
    if name in LARGEST:
        return x.round()
    if name == "tf32":
        return _to_tf32(x.float()).double()
    return x.to(FLOATS[name]).double()


def largest_of(name: str) -> float:
    """The largest number of the format."""
    if name in LARGEST:
        return LARGEST[name]
    return torch.finfo(FLOATS["fp32" if name == "tf32" else name]).max


def _to_tf32(x: Tensor) -> Tensor:
    """fp32 without the mantissa's last 13 bits, ties away from 0 as `cvt.rna.tf32` rounds (PTX ISA)."""
    bits = x.view(torch.int32)
    half = 1 << (TF32_DROPPED_BITS - 1)
    return ((bits + half) & ~((1 << TF32_DROPPED_BITS) - 1)).view(torch.float32)


def _scaled(name: str, scaling: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """The tensor in the format's range, and the scale that turns it back."""
    one = torch.ones((), dtype=x.dtype, device=x.device)
    if scaling == "none":
        return x, one
    if scaling == "tensor":
        top = x.abs().amax()
    else:
        top = x.unflatten(-1, (-1, GROUP)).abs().amax(-1).repeat_interleave(GROUP, -1)
    back = torch.where(top > 0, top / largest_of(name), one)
    return x / back, back


def collected(model: Decoder, ids: Tensor) -> Tensors:
    """One forward and backward pass over ids (rows, length + 1): what went into each linear layer of the
    blocks, its weight, and the gradient that came back into it."""
    found: Tensors = {kind: [] for kind in get_args(Rounded)}
    hooks = []
    model.requires_grad_(True)  # A real model is loaded for inference.
    for each in model.blocks.modules():
        if isinstance(each, nn.Linear):
            found["weights"].append(each.weight.detach())
            hooks.append(each.register_forward_pre_hook(_kept_input(found)))
            hooks.append(each.register_full_backward_hook(_kept_gradient(found)))
    model(ids[:, :-1], ids[:, 1:]).backward()
    for hook in hooks:
        hook.remove()
    return found


def _kept_input(found: Tensors) -> Callable[[nn.Module, Any], None]:
    return lambda _module, args: found["activations"].append(args[0].detach())


def _kept_gradient(found: Tensors) -> Callable[[nn.Module, Any, Any], None]:
    return lambda _module, _into, out: found["gradients"].append(out[0].detach())


def _trained(case: NumericsCase) -> tuple[Decoder, Tensor]:
    layers, width, length, batch, steps = _sizes(case, 5)
    model = build_decoder(
        positions.shape_of("rope", layers, width, length),
        attention=implementation("sdpa"),
        device=case.device,
        dtype=torch.float32,
        seed=case.seed,
    )
    seen, held_out = positions.tokens(_read(case), length)
    times = Times(case.device, lambda _n: None)
    positions.train(model, seen, times, batch=batch, length=length, steps=steps, seed=case.seed)
    return model, held_out[:batch]


def _pretrained(case: NumericsCase) -> tuple[Decoder, Tensor]:
    rows, length = _sizes(case, 2)
    found = load(case.way, attention="sdpa", device=case.device, dtype=torch.float32)
    return found.model, stretches(_read(case), found.words.encode, rows, length + 1)


def _sizes(case: NumericsCase, n: int) -> Iterator[int]:
    if case.way not in WAYS or len(case.sizes) != n or min(case.sizes) < 1 or case.text is None:
        raise PeakwardError(
            f"expected a way of {', '.join(WAYS)}, {n} positive sizes and a text, got {case.way!r}, "
            f"{case.sizes} and {case.text}"
        )
    return iter(case.sizes)


def _read(case: NumericsCase) -> QualityCase:
    """The case's text, as `lab/quality` reads it."""
    assert case.text is not None
    return QualityCase(
        subject="positions", way="rope", sizes=(), text=case.text, device=case.device
    )
