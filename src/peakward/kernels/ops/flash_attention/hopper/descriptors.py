"""Tensors as the copy engine reads and writes them: tile by tile, with zeros beyond their ends."""

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

DTYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}
ALIGNMENT_BYTES = 16


def describe(name: str, tensor: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A descriptor of (batch, heads, rows, head_dim), for tiles of `rows` rows of one head, 16 to 128
    columns wide.

    Raises:
        ValueError: Strides or an address that are no multiple of 16 bytes.
    """
    size = tensor.element_size()
    if tensor.data_ptr() % ALIGNMENT_BYTES or any(
        each * size % ALIGNMENT_BYTES for each in tensor.stride()[:-1]
    ):
        raise ValueError(
            f"flash_attention: expected {name} at multiples of 16 bytes for the implementation "
            f"'hopper', got strides {tensor.stride()} of {size} bytes at {tensor.data_ptr():#x}; "
            "make it contiguous, or take 'triton'"
        )
    tile = [1, 1, rows, columns]
    layout = gl.NVMMASharedLayout.get_default_for(tile, DTYPES[tensor.dtype])
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), tile, layout)


def describe_vectors(tensor: Tensor, n: int) -> TensorDescriptor:
    """A descriptor of contiguous (batch, heads, values) in fp32, for `n` values of one head."""
    layout = gl.NVMMASharedLayout(0, 32, 3)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, 1, n], layout)
