"""What a forward pass leaves for the backward pass."""

import torch

from peakward.lab.levers.saved import held_bytes


def test_each_storage_counts_once_and_inputs_do_not():
    x = torch.randn(8, 4, requires_grad=True)
    n_bytes = 8 * 4 * 4
    assert held_bytes(lambda: x * 2, [x]) == n_bytes, "the result alone"
    assert held_bytes(x.exp, [x]) == n_bytes, "saved, and the result"
    assert held_bytes(lambda: x.mT.exp().mT, [x]) == n_bytes, "one storage, two views"
    assert held_bytes(lambda: x * x, [x]) == n_bytes, "both operands are the input"
    assert held_bytes(lambda: x.exp().sin(), [x]) == 2 * n_bytes
