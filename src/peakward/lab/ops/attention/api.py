"""Causal self-attention by the name of its implementation."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from peakward.lab.ops.attention import reference, sdpa

AttentionFn = Callable[..., Tensor]
"""attention(q, k, v, *, window, bias) of `reference.attention`."""


def implementation(name: str) -> AttentionFn:
    """`naive`, or one of `sdpa.BACKENDS`; never another than the one asked for.

    Raises:
        ValueError: no such implementation.
    """
    if name == "naive":
        return reference.attention
    if name not in sdpa.BACKENDS:
        names = ", ".join(["naive", *sdpa.BACKENDS])
        raise ValueError(f"expected an attention implementation of {names}, got {name!r}")
    return partial(sdpa.attention, backend=sdpa.BACKENDS[name])
