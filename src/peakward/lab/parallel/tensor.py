"""Tensor parallelism of the reference decoder by torch's DTensor (Shoeybi et al. 2019, Megatron-LM).

Projections into attention and the feed-forward network are split by their outputs, those out of them by
their inputs: one sum over the ranks after each, in the forward pass and in the backward pass. The table of
tokens is split by words and the head by its outputs. Norms stay whole on every rank.

The packed projections hold queries, keys and values (gate and up) one below another. Their rows are put in
the order of the ranks first, so that the rows of each rank are its own heads.
"""

import msgspec
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from peakward.lab.models.decoder import Decoder, SelfAttention
from peakward.records.layout import expect_splittable
from peakward.records.model_shape import ModelShape


def split(model: Decoder, mesh: DeviceMesh) -> None:
    """Splits the model over a one-dimensional mesh, in place. All ranks must hold the same model.

    Raises:
        PeakwardError: as `expect_splittable`.
    """
    shape, n = model.shape, mesh.size()
    expect_splittable(shape, n)
    tied = model.readout.head.weight is model.embedding.weight
    inner: dict[str, ParallelStyle] = {
        "attention.qkv": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "ff.up": ColwiseParallel(),
        "ff.down": RowwiseParallel(),
    }
    for block in model.blocks:
        _reorder(block.attention.qkv, qkv_order(shape, n))  # type: ignore[union-attr, arg-type]
        if shape.gated:
            _reorder(block.ff.up, gate_order(shape, n))  # type: ignore[union-attr, arg-type]
        attention = block.attention
        assert isinstance(attention, SelfAttention)
        attention.shape = msgspec.structs.replace(
            shape, n_heads=shape.n_heads // n, n_kv_heads=shape.n_kv_heads // n
        )
        parallelize_module(block, mesh, inner)
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate()),
            "readout.head": ColwiseParallel(output_layouts=Replicate()),
        },
    )
    model.embedding.register_forward_hook(_waited)
    if tied:
        model.readout.head.weight = model.embedding.weight


def _waited(_module: nn.Module, _given: object, output: Tensor) -> Tensor:
    """A plain tensor in the place of one that waits when it is used (AsyncCollectiveTensor): compiled blocks
    are given either, and torch's backward pass fails behind the latter."""
    return output.clone()


def qkv_order(shape: ModelShape, n_ranks: int) -> Tensor:
    """Row numbers of the packed projection in the order of the ranks."""
    sizes = [each * shape.head_dim for each in (shape.n_heads, shape.n_kv_heads, shape.n_kv_heads)]
    return _by_rank(sizes, n_ranks)


def gate_order(shape: ModelShape, n_ranks: int) -> Tensor:
    """Row numbers of gate and up in the order of the ranks."""
    return _by_rank([shape.d_ff, shape.d_ff], n_ranks)


def _by_rank(sizes: list[int], n_ranks: int) -> Tensor:
    parts = torch.arange(sum(sizes)).split(sizes)
    chunks = [each.chunk(n_ranks) for each in parts]
    return torch.cat([chunk[rank] for rank in range(n_ranks) for chunk in chunks])


def _reorder(layer: nn.Linear, order: Tensor) -> None:
    for each in layer.parameters():
        each.data = each.data[order.to(each.device)]


def whole_order(name: str, shape: ModelShape, n_ranks: int) -> Tensor | None:
    """The row numbers that bring a parameter of that name back to the order of one rank; None where its
    rows were left alone."""
    if n_ranks > 1 and ".attention.qkv." in name:
        return qkv_order(shape, n_ranks).argsort()
    if n_ranks > 1 and shape.gated and ".ff.up." in name:
        return gate_order(shape, n_ranks).argsort()
    return None
