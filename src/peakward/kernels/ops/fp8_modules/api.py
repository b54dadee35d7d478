"""Linear layers of a model that compute in fp8, in place, with the delayed scales that they keep.

The scales are state of their forward pass (`forwards.STATE`), no buffers: they stand in no `state_dict` and
in no copy, and find themselves anew by the first steps. What puts a model's state back knows of them.
"""

import math
import re
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peakward.kernels.ops.forwards import STATE, Undo, after_moves, give_forward
from peakward.kernels.ops.fp8_linear.api import SIDE, fp8_linear, fp8_scales
from peakward.kernels.ops.fp8_linear.scales import Scales
from peakward.kernels.ops.launchable import FLOATS, autocast_dtype

OP = "fp8_layers"
HALVES = (torch.float16, torch.bfloat16)
_NAMES = tuple(f"{STATE}fp8_{each}" for each in Scales._fields)
Linear = Callable[[nn.Linear, Tensor], Tensor]
"""Computes a layer that keeps delayed scales."""


def fp8_layers(module: nn.Module, names: Iterable[str]) -> int:
    """Lets linear layers of a model multiply fp8 numbers, in place, by delayed scales where they train.

    A call in 16 bits, as under autocast, whose tokens are a multiple of 16 is `fp8_linear`; any other one
    stays as it was. Parameters, hooks and the names of `state_dict` stay too. Copies and saved modules are
    plain: call this for them again.

    Args:
        module: the model, before it is compiled.
        names: paths of `nn.Linear` layers in it, as `named_modules` has them. * stands for any number:
            "layers.*.up".

    Returns:
        The number of layers that were changed.

    Raises:
        ValueError: a name of no layer, or of one that cannot be in fp8: it has a forward pass of its own, as
            one has that this was called for before, sides that are no multiples of 16, or a weight in another
            type than fp32, fp16 and bf16. Nothing is changed then. A call in 16 bits raises it on a device
            without e4m3 (compute capability 8.9).
    """
    found: dict[str, nn.Linear] = {}
    for pattern in names:
        matching = {name: each for name, each in module.named_modules() if is_named(name, pattern)}
        if not matching:
            raise ValueError(f"{OP}: expected names of linear layers, got {pattern!r} of none")
        for name, each in matching.items():
            if not isinstance(each, nn.Linear) or (reason := unfit(each)) is not None:
                said = reason if isinstance(each, nn.Linear) else f"is a {type(each).__name__}"
                raise ValueError(
                    f"{OP}: expected linear layers for fp8, got {name!r}, which {said}"
                )
            found[name] = each
    put_in(found.values())
    return len(found)


def is_named(name: str, pattern: str) -> bool:
    """Whether a path is of the pattern, in which * stands for any number."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", r"\d+"), name) is not None


def unfit(layer: nn.Linear) -> str | None:
    """Why a layer cannot be in fp8, as the rest of a sentence; None where it can."""
    kind = type(layer)
    if kind.forward is not nn.Linear.forward or "forward" in vars(layer):
        return f"is a {kind.__name__} with a forward pass of its own"
    if layer.weight.dtype not in FLOATS or type(layer.weight) not in (nn.Parameter, Tensor):
        return f"has a weight in {type(layer.weight).__name__} of {str(layer.weight.dtype)[6:]}"
    if layer.in_features % SIDE or layer.out_features % SIDE:
        return f"has sides that are no multiples of {SIDE}"
    return None


def in_fp8(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer's three products in fp8, by its delayed scales where it trains."""
    return fp8_linear(x, layer.weight, layer.bias, scales_of(layer))


def put_in(layers: Iterable[nn.Linear], linear: Linear = in_fp8) -> Undo:
    """Let the layers keep delayed scales, and compute by `linear` where it takes their tokens, of 16 bits."""
    changed = tuple(layers)

    def made(_kind: type[nn.Module], _own: object) -> Callable[[nn.Linear, Tensor], Tensor]:
        def forward(self: nn.Linear, input: Tensor) -> Tensor:
            n_tokens = math.prod(input.shape[:-1])
            if n_tokens == 0 or n_tokens % SIDE or not _is_narrow(self, input):
                return F.linear(input, self.weight, self.bias)
            return linear(self, input)

        return forward

    for each in changed:
        keep_scales(each)
    take_back = give_forward(changed, made)
    # Scales that a forward pass makes anew cut its graph, and have it compiled twice.
    stay = after_moves(changed, scales_of)

    def undo() -> None:
        stay()
        take_back()
        for each in changed:
            drop_scales(each)

    return undo


def _is_narrow(layer: nn.Linear, x: Tensor) -> bool:
    """Whether a product is of 16 bits; one in fp64 stays so under autocast."""
    dtype = autocast_dtype(x.device) or x.dtype
    return dtype in HALVES and x.dtype in FLOATS and layer.weight.dtype in FLOATS


@torch.compiler.disable(  # type: ignore[untyped-decorator]
    reason="a graph cannot change in its backward pass what it made in the forward pass"
)
def keep_scales(layer: nn.Linear) -> Scales:
    """Give a layer empty histories on its device."""
    with torch.inference_mode(False):  # What is made inside cannot be changed outside.
        scales = fp8_scales(layer.weight.device)
    for name, each in zip(_NAMES, scales, strict=True):
        setattr(layer, name, each)
    return scales


def scales_of(layer: nn.Linear) -> Scales:
    """A layer's histories, after `keep_scales`; where it has moved since, empty ones."""
    x, weight, gradient = (getattr(layer, each) for each in _NAMES)
    if x.device != layer.weight.device:
        x, weight, gradient = keep_scales(layer)
    return Scales(x, weight, gradient)


def drop_scales(layer: nn.Linear) -> None:
    """Take the histories from a layer, after `keep_scales`."""
    for name in _NAMES:
        delattr(layer, name)
