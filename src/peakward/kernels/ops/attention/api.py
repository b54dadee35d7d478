"""Causal self-attention by the name of its implementation."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from peakward.kernels.ops.attention import own, reference, sdpa
from peakward.kernels.ops.attention.flex import FlexAttention
from peakward.kernels.ops.attention.reference import Opened

AttentionFn = Callable[..., Tensor]
"""attention(q, k, v, *, window, bias) of `reference.attention`."""


def implementation(name: str) -> AttentionFn:
    """The named implementation and no other: `naive`, `flex`, or one of `sdpa.BACKENDS` or
    `own.IMPLEMENTATIONS`.

    Raises:
        ValueError: no such implementation.
    """
    if name == "naive":
        return reference.attention
    if name == "flex":
        return FlexAttention()
    if name == own.DECODE:
        return own.attention_to_cache
    if name in own.IMPLEMENTATIONS:
        return partial(own.attention, implementation=own.IMPLEMENTATIONS[name])
    if name not in sdpa.BACKENDS:
        names = ", ".join(["naive", "flex", *sdpa.BACKENDS, *own.IMPLEMENTATIONS, own.DECODE])
        raise ValueError(f"expected an attention implementation of {names}, got {name!r}")
    return partial(sdpa.attention, backend=sdpa.BACKENDS[name])


def in_ranges(attention: AttentionFn, opened: Opened) -> AttentionFn:
    """The same operations with `opened("attention")` around them, for a profile.

    Where the implementation is `naive`, with `opened` of "attention.scores", "attention.softmax"
    and "attention.values" around its parts too. Any other, a compiled one also, is called as it is.
    """
    within = attention
    if attention is reference.attention:
        within = partial(
            reference.attention_in_ranges, opened=lambda part: opened(f"attention.{part}")
        )

    def ranged(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        with opened("attention"):
            return within(q, k, v, **options)

    return ranged
