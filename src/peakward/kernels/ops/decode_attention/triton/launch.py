"""Starts the kernels."""

import math
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from peakward.kernels.ops.decode_attention.triton.join import join
from peakward.kernels.ops.decode_attention.triton.pieces import decode_attention_pieces
from peakward.kernels.ops.decode_attention.triton.settings import (
    H100_MULTIPROCESSORS,
    MOST_ROWS,
    Settings,
    others_for,
    settings_for,
)
from peakward.kernels.ops.recording import launch
from peakward.kernels.ops.rows.layout import alignment, shared_bytes
from peakward.kernels.ops.tuning import tuned

LOG2_E = math.log2(math.e)


class _Call(NamedTuple):
    """The arguments of `decode_attention`, of dimensions (sequence or page, kv_head, position,
    head_dim). Scales of half bytes are words of a step and a least element, (…, groups) of int32."""

    q: Tensor
    k: Tensor
    v: Tensor
    lengths: Tensor | None
    block_table: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None
    window: int | None
    scale: float | None

    @property
    def n_groups(self) -> int:
        """Those of a position's elements, of half a byte each; 0 of a cache in other types."""
        return self.k_scale.shape[3] if self.k_scale is not None and self.k_scale.dim() == 4 else 0

    @property
    def page_size(self) -> int:
        """Positions; 0 of a cache without pages."""
        return 0 if self.block_table is None else self.k.shape[2]

    @property
    def positions(self) -> int:
        """The most positions that a sequence may have."""
        if self.block_table is None:
            return self.k.shape[2]
        return self.block_table.shape[1] * self.page_size

    @property
    def span(self) -> int:
        """The most positions that a sequence may have to read."""
        if self.window is None:
            return self.positions
        return min(self.positions, self.window + self.q.shape[2] - 1)

    @property
    def n_rows(self) -> int:
        """Queries and heads that share keys."""
        return self.q.shape[1] // self.k.shape[1] * self.q.shape[2]

    @property
    def block_rows(self) -> int:
        return min(MOST_ROWS, max(8, triton.next_power_of_2(self.n_rows)))

    @property
    def block_dim(self) -> int:
        """Columns of a program's products: at least 16, of bytes 32; half bytes are taken as four parts."""
        least = 16 if self.k_scale is None else 64 if self.n_groups else 32
        return max(least, triton.next_power_of_2(self.q.shape[3]))

    def strides(self, align: int) -> tuple[int, ...]:
        """The strides of queries, keys, values, scales and the table as the kernel takes them. Those of keys
        and values count `align` elements at once, but within a position; those of what is not there are 0."""
        k, v = self.k.stride(), self.v.stride()
        scales = (self.k_scale, self.v_scale)
        return (
            *self.q.stride(),
            *(each // align for each in k[:3]),
            k[3],
            *(each // align for each in v[:3]),
            v[3],
            *(n for each in scales for n in ((0,) * 3 if each is None else each.stride()[:3])),
            *((0, 0) if self.block_table is None else self.block_table.stride()),
        )

    @property
    def n_caches(self) -> int:
        """Sequences times heads of keys."""
        return self.q.shape[0] * self.k.shape[1]

    @property
    def whole_vectors(self) -> bool:
        """Whether every position begins with a vector of 16 bytes."""
        n = 16 // self.k.element_size()
        return all(
            each.data_ptr() % 16 == 0
            and each.stride(3) == 1
            and all(stride % n == 0 for stride in each.stride()[:3])
            for each in (self.k, self.v)
        )


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lengths: Tensor | None = None,
    block_table: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    window: int | None = None,
    scale: float | None = None,
    settings: Settings | None = None,
    n_multiprocessors: int = H100_MULTIPROCESSORS,
) -> tuple[Tensor, Tensor]:
    """As `reference.decode_attention`, of a cache that may be paged and quantised.

    Args:
        k, v: of any strides, in q's dtype or quantised; with `block_table` pages
            (n_pages, page_size, kv_heads, head_dim). In uint8 head_dim / 2 bytes of two elements each.
        k_scale, v_scale: of quantised caches, k's shape without the last dimension; of uint8 with (groups, 2)
            in its place, as `reference.packed` gives them.

    Returns:
        The output in q's dtype, and the log-sum-exp in fp32; both contiguous.
    """
    if block_table is not None:
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        k_scale, v_scale = (None if s is None else s.transpose(1, 2) for s in (k_scale, v_scale))
    if k_scale is not None and v_scale is not None and k.dtype == torch.uint8:
        k_scale, v_scale = (each.view(torch.int32).squeeze(-1) for each in (k_scale, v_scale))
    call = _Call(q, k, v, lengths, block_table, k_scale, v_scale, window, scale)
    if q.numel() == 0:
        return _outputs(q)
    return _started(call, settings or _settings_of(call, n_multiprocessors))


def _outputs(q: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    return out, torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)


def _settings_of(call: _Call, n_multiprocessors: int) -> Settings:
    """By rule, or where asked for the fastest."""
    head_dim, page_size = call.q.shape[3], call.page_size
    # Half bytes are widened in registers, but for products that do not use tensor cores.
    is_widened = call.n_groups > 0 and call.q.dtype == torch.float32
    widened_bytes = triton.next_power_of_2(head_dim) * 4 if is_widened else 0

    def by_rule(span: int) -> Settings:
        return settings_for(
            n_groups=call.n_caches * triton.cdiv(call.n_rows, call.block_rows),
            n_rows=call.n_rows,
            span=span,
            row_bytes=triton.next_power_of_2(call.k.shape[3]) * call.k.element_size(),
            n_multiprocessors=n_multiprocessors,
            item_bytes=call.k.element_size(),
            in_pages=page_size > 0,
            shared_bytes=shared_bytes(call.q.device),
            widened_bytes=widened_bytes,
        )

    # Of whole caches, of which there may be little yet; a table may name no pages beyond a length.
    timed = call if page_size else call._replace(lengths=None)
    most = triton.next_power_of_2(call.span)
    return tuned(
        "decode_attention",
        lambda: (
            f"{call.n_rows} rows of {call.q.dtype}, {head_dim} wide, {call.n_caches} caches of "
            f"{call.k.dtype}, {'whole' if call.whole_vectors else 'broken'} vectors, up to {most} "
            f"positions, pages of {page_size}"
        ),
        call.q.device,
        rule=by_rule(call.span),
        others=lambda: others_for(by_rule(most), most),
        start=lambda each: _started(timed, each),
    )


def _started(call: _Call, settings: Settings) -> tuple[Tensor, Tensor]:
    q, k, v, k_scale, v_scale = call.q, call.k, call.v, call.k_scale, call.v_scale
    n_splits, kv_heads, head_dim = settings.n_splits, k.shape[1], q.shape[3]
    row_blocks = triton.cdiv(call.n_rows, call.block_rows)
    align = alignment(*k.stride()[:3], *v.stride()[:3])
    out, lse = _outputs(q)
    parts, part_lses = out, lse
    if n_splits > 1:
        parts = torch.empty((n_splits, *out.shape), dtype=torch.float32, device=q.device)
        part_lses = torch.empty((n_splits, *lse.shape), dtype=torch.float32, device=q.device)
    launch(
        decode_attention_pieces,
        (call.n_caches * row_blocks, n_splits),
        q,
        k,
        v,
        k_scale,
        v_scale,
        call.block_table,
        call.lengths,
        parts,
        part_lses,
        call.positions,
        call.window or 0,
        (1 / math.sqrt(head_dim) if call.scale is None else call.scale) * LOG2_E,
        *call.strides(align),
        call.n_caches,
        kv_heads,
        row_blocks,
        ROWS=call.n_rows,
        N_QUERIES=q.shape[2],
        PAGE_SIZE=call.page_size,
        HAS_LENGTHS=call.lengths is not None,
        WINDOWED=call.window is not None,
        QUANTIZED=k_scale is not None and not call.n_groups,
        N_GROUPS=call.n_groups,
        ALIGN=align,
        BLOCK_ROWS=call.block_rows,
        BLOCK=settings.block_positions,
        BLOCK_DIM=call.block_dim,
        HEAD_DIM=head_dim,
        num_warps=settings.num_warps,
        # Keys of pages are loaded behind their entries of the table, and Triton shares the stages out between
        # both: of 4 it keeps one block on its way for the 3 of a cache without pages.
        num_stages=2 * settings.num_stages - 1 if call.page_size else settings.num_stages,
    )
    if n_splits > 1:
        join(parts, part_lses, out, lse)
    return out, lse
