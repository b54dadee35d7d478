"""Batches that lie on the device, in turn."""

import torch

from peakward.lab.data.resident import Resident


def test_batches_come_in_turn():
    steps = [[(torch.tensor(i), torch.tensor(-i))] for i in range(3)]
    resident = Resident(steps)
    assert resident.again() is steps[0]
    assert [resident() is steps[i % 3] for i in range(5)] == [True] * 5
    assert resident.again() is steps[2]
    resident.rewind()
    assert resident() is steps[0]
    assert [each.item() for each in resident.held()] == [0, 0, 1, -1, 2, -2]
