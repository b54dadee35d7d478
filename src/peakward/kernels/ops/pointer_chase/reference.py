"""A chain of loads, each of which says where the next one is."""

from torch import Tensor


def chase(table: Tensor, position: Tensor, n_loads: int) -> None:
    """Follow the chain from where it was left.

    Args:
        table: int64, contiguous; holds offsets into itself, in bytes.
        position: int64, one element on the table's device: the offset of the next load before, and
            of the one after the last load then.
        n_loads: how many to make.
    """
    offset = int(position.item())
    for _ in range(n_loads):
        offset = int(table[offset // table.element_size()].item())
    position.fill_(offset)
