"""The tensors of a call as the kernels read them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import knobs
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from peakward.kernels.ops.flash_attention.rule import Packing, Rule

Strides = tuple[int, int, int]
"""The strides of batch, head and row, in elements."""
SECTION_BYTES = 24 << 20
"""Keys and values that programs side by side read: half of an H100's L2."""


class Problem(NamedTuple):
    """Sizes of a call; of packed sequences, of the longest."""

    n_batches: int
    n_heads: int
    n_kv_heads: int
    q_len: int
    k_len: int
    head_dim: int
    q_tokens: int
    """Rows of a head in q: q_len, or those of all packed sequences."""

    @property
    def group(self) -> int:
        """Heads that share keys and values."""
        return self.n_heads // self.n_kv_heads

    def kind(self, q: Tensor, rule: Rule) -> str:
        """The properties that decide the fastest settings: lengths and programs in powers of two."""
        most = [
            1 << (each - 1).bit_length()
            for each in (self.q_len, self.k_len, self.n_batches * self.n_heads)
        ]
        seen = "causal" if rule.causal else "all keys"
        seen += f" in a window of {rule.window}" if rule.window is not None else ""
        return (
            f"{q.dtype}, head_dim {self.head_dim}, {seen}, {most[0]} queries, {most[1]} keys, "
            f"{most[2]} heads of {self.group} a group, at most"
        )


def problem_of(q: Tensor, k: Tensor, packing: Packing | None) -> Problem:
    """The sizes of q and k."""
    if packing is None:
        return Problem(
            n_batches=q.shape[0],
            n_heads=q.shape[1],
            n_kv_heads=k.shape[1],
            q_len=q.shape[2],
            k_len=k.shape[2],
            head_dim=q.shape[3],
            q_tokens=q.shape[2],
        )
    return Problem(
        n_batches=packing.q_starts.shape[0] - 1,
        n_heads=q.shape[1],
        n_kv_heads=k.shape[1],
        q_len=packing.q_len,
        k_len=packing.k_len,
        head_dim=q.shape[2],
        q_tokens=q.shape[0],
    )


def capability() -> int:
    """The compute capability of the GPU that kernels are compiled for, as 90 for 9.0; the lowest one in
    the interpreter."""
    if knobs.runtime.interpret:
        return 80
    return int(driver.active.get_current_target().arch)


def parts(head_dim: int) -> tuple[int, int]:
    """Two powers of two that hold a head: 80 in 64 + 16, 64 in 64 + 0.

    A product's operands are no narrower than 16.
    """
    first = 1 << (head_dim.bit_length() - 1)
    rest = head_dim - first
    return first, 0 if rest == 0 else max(16, 1 << (rest - 1).bit_length())


def strides_of(tensor: Tensor) -> Strides:
    """The strides of (batch, heads, rows, d), or of packed (tokens, heads, d), where the starts give
    each sequence's first row."""
    if tensor.dim() == 4:
        batch, head, row, _ = tensor.stride()
        return batch, head, row
    row, head, _ = tensor.stride()
    return 0, head, row


def describable(*tensors: Tensor) -> bool:
    """Whether tensor descriptors can say where rows are: 16-byte strides and starts, none empty."""
    return all(
        each.dim() == 4
        and each.numel() > 0
        and each.data_ptr() % 16 == 0
        and all(
            stride > 0 and stride * each.element_size() % 16 == 0
            for stride, size in zip(each.stride()[:3], each.shape[:3], strict=True)
            if size > 1
        )
        for each in tensors
    )


def halves(tensor: Tensor, rows: int, *, described: bool) -> tuple[Any, Any]:
    """The sources from which a kernel loads blocks of `rows` rows: the first part of the head and the
    second.

    Without a second part the first one stands in its place and is not read, because Triton 3.6 has no
    functions of None.
    """
    first, second = parts(tensor.shape[-1])
    rest = tensor[..., first:] if second else tensor
    if not described:
        return tensor, rest
    return _descriptor(tensor, rows, first), _descriptor(rest, rows, second or first)


def _descriptor(tensor: Tensor, rows: int, width: int) -> TensorDescriptor:
    # A stride that is never taken must still be a multiple of 16 bytes.
    strides = [
        stride if size > 1 else 16
        for stride, size in zip(tensor.stride()[:3], tensor.shape[:3], strict=True)
    ]
    return TensorDescriptor(tensor, list(tensor.shape), [*strides, 1], [1, 1, rows, width])


def section(rows: int, head_dim: int, element_size: int, *, n_heads: int) -> int:
    """The number of heads, of `n_heads`, whose two tensors of `rows` rows fit into L2 together; at
    least one."""
    return max(1, min(n_heads, SECTION_BYTES // max(2 * rows * head_dim * element_size, 1)))


def starts_of(packing: Packing | None) -> tuple[Tensor | None, Tensor | None]:
    """The first tokens of packed sequences, of q and of k."""
    return (None, None) if packing is None else (packing.q_starts, packing.k_starts)


def lse_like(problem: Problem, q: Tensor, packing: Packing | None) -> Tensor:
    """Uninitialised (batch, heads, q_len) of fp32; of packed sequences (heads, tokens)."""
    outer = () if packing is not None else (problem.n_batches,)
    shape = (*outer, problem.n_heads, problem.q_tokens)
    return torch.empty(shape, dtype=torch.float32, device=q.device)


def row_strides(problem: Problem, packing: Packing | None) -> tuple[int, int]:
    """The strides of batch and head in the result of `lse_like`."""
    return (0 if packing is not None else problem.n_heads * problem.q_tokens, problem.q_tokens)
