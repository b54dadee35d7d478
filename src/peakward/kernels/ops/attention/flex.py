"""torch's FlexAttention with the causal block mask, compiled: uncompiled it makes the score matrix."""

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention


class FlexAttention:
    """As `reference.attention`, without a bias and for as many keys as queries.

    It keeps the block mask of the last length until the next one: the mask of 65,536 positions has 4
    MiB.
    """

    def __init__(self) -> None:
        self._compiled = torch.compile(flex_attention, dynamic=False)
        self._mask: BlockMask | None = None
        self._masked: tuple[int, int | None, torch.device] | None = None

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, window: int | None, bias: Tensor | None
    ) -> Tensor:
        """See the class.

        Raises:
            ValueError: a bias, or keys of a cache.
        """
        if bias is not None:
            raise ValueError(f"expected no bias with FlexAttention, got {tuple(bias.shape)}")
        if q.shape[2] != k.shape[2]:
            raise ValueError(
                f"expected as many keys as queries with FlexAttention, got {k.shape[2]} and {q.shape[2]}"
            )
        asked = (q.shape[2], window, q.device)
        if self._masked != asked:
            self._mask, self._masked = _block_mask(*asked), asked
        return self._compiled(q, k, v, block_mask=self._mask, enable_gqa=q.shape[1] != k.shape[1])


def _block_mask(seq_len: int, window: int | None, device: torch.device) -> BlockMask:
    def seen(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if window is None:
            return query >= key
        return (query >= key) & (query - key < window)

    return create_block_mask(seen, None, None, seq_len, seq_len, device=device)
