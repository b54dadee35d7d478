"""Attention of up to eight new tokens a sequence to a long cache, in Triton.

It serves a step of decode, as torch's scaled_dot_product_attention of few queries does, and adds
lengths by sequence, pages, quantised caches and the log-sum-exp. Under torch.compile it is one
operator, `peakward::decode_attention`; it has no gradient.
"""

import torch
from torch import Tensor

from peakward.kernels.ops.calling import operator
from peakward.kernels.ops.decode_attention.reference import layout
from peakward.kernels.ops.launchable import (
    FLOATS,
    require_floats,
    require_launchable,
    require_one_device,
)

OP = "decode_attention"
MOST_QUERIES = 8
MOST_HEAD_DIM = 256
QUANTIZED = (torch.int8, torch.float8_e4m3fn, torch.uint8)
FP8_CAPABILITY = (8, 9)


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None = None,
    *,
    window: int | None = None,
    scale: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """`reference.decode_attention`'s output, of a contiguous cache.

    Args:
        q: (batch, heads, n_queries, head_dim), n_queries at most 8, in fp32, fp16 or bf16; head_dim
            at most 256. Rows of 16 bytes times a whole number are fetched fastest. Autocast casts nothing.
        k, v: (batch, kv_heads, positions, head_dim) of any strides, in q's dtype; or int8 or
            float8_e4m3fn, with scales: then of an even head_dim, and v of pairs of bytes (its last
            stride 1, the others and its offset even). Or uint8, two elements of half a byte in each of
            head_dim / 2, as `reference.packed` gives them: then 4 divides head_dim, and k too is of pairs.
        lengths: (batch,) of int32 or int64, each from 0 to `positions`, which is not checked.
        k_scale, v_scale: (batch, kv_heads, positions) of a float, finite: of each position of each
            head, as `reference.quantized` gives them. Of uint8 the step and the least element of each
            group, (batch, kv_heads, positions, groups, 2) of bf16, those of a position side by side.

    Raises:
        ValueError: what the kernel cannot take, or no GPU that it runs on.
    """
    return decode_attention_with_lse(
        q, k, v, lengths, window=window, scale=scale, k_scale=k_scale, v_scale=v_scale
    )[0]


def decode_attention_with_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None = None,
    *,
    window: int | None = None,
    scale: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The output of `decode_attention`, and the log-sum-exp, (batch, heads, n_queries) of fp32."""
    _require_query(q)
    batch, _, _, head_dim = q.shape
    width = width_of(OP, head_dim, k.dtype)
    _require_cache(q, k, v, k_scale, v_scale)
    if k.shape[0] != batch or k.shape[3] != width:
        raise ValueError(
            f"{OP}: expected k and v of ({batch}, kv_heads, positions, {width}), "
            f"got {tuple(k.shape)}"
        )
    _require_groups(q, k.shape[1])
    _require_lengths(lengths, batch)
    window = _window(window)
    return _op(q, k, v, lengths, None, k_scale, v_scale, window=window, scale=scale)


def paged_decode_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    *,
    window: int | None = None,
    scale: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """As `decode_attention`, for a cache in pages.

    Args:
        k_pages, v_pages: (n_pages, page_size, kv_heads, head_dim) of any strides.
        block_table: (batch, max_pages) of int32: the page of the positions from i·page_size on, for
        every position below the sequence's length; other entries are not read.
        k_scale, v_scale: (n_pages, page_size, kv_heads), of uint8 with (groups, 2) behind them.
    """
    return paged_decode_attention_with_lse(
        q,
        k_pages,
        v_pages,
        block_table,
        lengths,
        window=window,
        scale=scale,
        k_scale=k_scale,
        v_scale=v_scale,
    )[0]


def paged_decode_attention_with_lse(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    *,
    window: int | None = None,
    scale: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The output of `paged_decode_attention`, and the log-sum-exp, (batch, heads, n_queries) of fp32."""
    _require_query(q)
    batch, _, _, head_dim = q.shape
    width = width_of(OP, head_dim, k_pages.dtype)
    _require_cache(q, k_pages, v_pages, k_scale, v_scale)
    if k_pages.shape[3] != width or k_pages.shape[1] == 0:
        raise ValueError(
            f"{OP}: expected pages of (n_pages, page_size, kv_heads, {width}) with a page_size "
            f"of at least 1, got {tuple(k_pages.shape)}"
        )
    _require_groups(q, k_pages.shape[2])
    require_table(OP, block_table, batch)
    _require_lengths(lengths, batch)
    window = _window(window)
    return _op(
        q, k_pages, v_pages, lengths, block_table, k_scale, v_scale, window=window, scale=scale
    )


@operator("peakward::decode_attention")
def _op(  # noqa: PLR0917 (torch takes no keyword-only tensors)
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,
    block_table: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    *,
    window: int | None,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    require_launchable(OP, q, k, v, lengths, block_table, k_scale, v_scale)
    if v.dtype == torch.uint8:
        require_words(OP, k_scale, v_scale)
        _require_pairs("k", k)
    if v_scale is not None:
        _require_pairs("v", v)
    from peakward.kernels.ops.decode_attention import triton as kernels

    n_multiprocessors = kernels.H100_MULTIPROCESSORS
    if q.is_cuda:
        properties = torch.cuda.get_device_properties(q.device)
        require_fp8(OP, k.dtype, (properties.major, properties.minor))
        n_multiprocessors = properties.multi_processor_count
    with torch.cuda.device_of(q):
        return kernels.decode_attention(
            q,
            k,
            v,
            lengths=None if lengths is None else lengths.contiguous(),
            block_table=block_table,
            k_scale=k_scale,
            v_scale=v_scale,
            window=window,
            scale=scale,
            n_multiprocessors=n_multiprocessors,
        )


@_op.register_fake
def _(q: Tensor, *others: Tensor | None, **_: object) -> tuple[Tensor, Tensor]:
    require_one_device(OP, q, *others)
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


def _require_query(q: Tensor) -> None:
    require_floats(OP, q=q)
    if q.dim() != 4 or not 1 <= q.shape[2] <= MOST_QUERIES:
        raise ValueError(
            f"{OP}: expected q of (batch, heads, 1 to {MOST_QUERIES} queries, head_dim), got "
            f"{tuple(q.shape)}"
        )
    if not 1 <= q.shape[3] <= MOST_HEAD_DIM:
        raise ValueError(f"{OP}: expected a head_dim from 1 to {MOST_HEAD_DIM}, got {q.shape[3]}")


def _require_cache(
    q: Tensor, k: Tensor, v: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> None:
    if k.dim() != 4 or k.shape != v.shape:
        raise ValueError(
            f"{OP}: expected k and v of one shape of four dimensions, got {tuple(k.shape)} and "
            f"{tuple(v.shape)}"
        )
    quantized = k_scale is not None and v_scale is not None
    types = QUANTIZED if quantized else (q.dtype,)
    if k.dtype != v.dtype or k.dtype not in types or (k_scale is None) != (v_scale is None):
        names = " or ".join(str(each) for each in (q.dtype, *QUANTIZED))
        raise ValueError(
            f"{OP}: expected k and v both in {names}, the latter three with k_scale and v_scale, got "
            f"{k.dtype} and {v.dtype} with {'' if quantized else 'not both '}scales"
        )
    if k.dtype == torch.uint8:
        _require_groups_of(q.shape[3], k, k_scale, v_scale)
        return
    for name, each in (("k_scale", k_scale), ("v_scale", v_scale)):
        if each is not None and (each.shape != k.shape[:3] or each.dtype not in FLOATS):
            raise ValueError(
                f"{OP}: expected {name} of {tuple(k.shape[:3])} in float32, float16 or bfloat16, "
                f"got {tuple(each.shape)} in {each.dtype}"
            )


def width_of(op: str, head_dim: int, dtype: torch.dtype) -> int:
    """The elements of a key as it is stored.

    Raises:
        ValueError: a head_dim that 4 does not divide, for half bytes.
    """
    if dtype == torch.uint8 and head_dim % 4:
        raise ValueError(
            f"{op}: expected a head_dim that 4 divides for a cache of half bytes, got {head_dim}"
        )
    return layout(head_dim, dtype).width


def require_table(op: str, block_table: Tensor, batch: int) -> None:
    """
    Raises:
        ValueError: no table of so many sequences.
    """
    if block_table.dim() != 2 or len(block_table) != batch or block_table.dtype != torch.int32:
        raise ValueError(
            f"{op}: expected block_table of ({batch}, max_pages) in int32, got "
            f"{tuple(block_table.shape)} in {block_table.dtype}"
        )


def _require_groups_of(
    head_dim: int, k: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> None:
    if k.shape[3] != (width := width_of(OP, head_dim, k.dtype)):
        raise ValueError(
            f"{OP}: expected k and v of {width} bytes for a head_dim of {head_dim}, got {k.shape[3]}"
        )
    size = (*k.shape[:3], *layout(head_dim, k.dtype).scale)
    for name, each in (("k_scale", k_scale), ("v_scale", v_scale)):
        if each is not None and (each.shape != size or each.dtype != torch.bfloat16):
            raise ValueError(
                f"{OP}: expected {name} of {size} in bfloat16 for a cache of half bytes, got "
                f"{tuple(each.shape)} in {each.dtype}"
            )


def require_words(op: str, *scales: Tensor | None) -> None:
    """Requires words of a step and a least element, of the tensors at hand as `_require_pairs` does."""
    for each in scales:
        if each is None:
            continue
        odd = any(n % 2 for n in (each.storage_offset(), *each.stride()[:3]))
        if each.stride()[3:] != (2, 1) or odd:
            raise ValueError(
                f"{op}: expected the groups of a position side by side, with other strides that are even and "
                f"an even offset, got scales with strides {each.stride()} from {each.storage_offset()} on"
            )


def _require_pairs(name: str, each: Tensor) -> None:
    """Requires pairs of bytes. The tensor at hand is checked, because torch.compile does not tell the
    offset of a traced one."""
    odd = any(n % 2 for n in (each.shape[3], each.storage_offset(), *each.stride()[:3]))
    if each.stride(3) != 1 or odd:
        raise ValueError(
            f"{OP}: expected a quantised {name} of an even number of bytes a head, a last stride of 1, "
            f"others that are even and an even offset, got {tuple(each.shape)} with strides {each.stride()} "
            f"from {each.storage_offset()} on"
        )


def _require_groups(q: Tensor, kv_heads: int) -> None:
    if kv_heads == 0 or q.shape[1] % kv_heads:
        raise ValueError(f"{OP}: expected kv_heads to divide {q.shape[1]} heads, got {kv_heads}")


def _require_lengths(lengths: Tensor | None, batch: int) -> None:
    if lengths is None:
        return
    if lengths.shape != (batch,) or lengths.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"{OP}: expected lengths of ({batch},) in int32 or int64, got "
            f"{tuple(lengths.shape)} in {lengths.dtype}"
        )


def _window(window: int | None) -> int | None:
    if window is not None and window < 1:
        raise ValueError(f"{OP}: expected a window of at least 1, got {window}")
    return window


def require_fp8(op: str, dtype: torch.dtype, capability: tuple[int, int]) -> None:
    """
    Raises:
        ValueError: float8_e4m3fn on a GPU without it.
    """
    if dtype == torch.float8_e4m3fn and capability < FP8_CAPABILITY:
        raise ValueError(
            f"{op}: expected a GPU of compute capability 8.9 or later for a {dtype} cache, got "
            f"{capability[0]}.{capability[1]}"
        )
