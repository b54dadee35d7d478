"""The optimiser's set-up before a capture (captures themselves are tested on a GPU)."""

import pytest
import torch
from torch import nn

from peakward.lab.levers.cuda_graphs import set_up
from peakward.levers.optimizer import LEARNING_RATE, adamw


@pytest.mark.parametrize("implementation", ["adamw-loop", "adamw-foreach", "adamw-fused"])
def test_set_up_makes_the_state_and_changes_nothing(implementation):
    torch.manual_seed(0)
    prepared, fresh = nn.Linear(8, 8), nn.Linear(8, 8)
    fresh.load_state_dict(prepared.state_dict())
    optimizers = [adamw(model, implementation, capturable=False) for model in (prepared, fresh)]
    for a, b in zip(prepared.parameters(), fresh.parameters(), strict=True):
        a.grad = torch.randn_like(a)
        b.grad = a.grad.clone()

    set_up(optimizers[0])

    for a, b in zip(prepared.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b)
    states = list(optimizers[0].state.values())
    assert len(states) == 2
    assert all(not value.any() for state in states for value in state.values())
    assert optimizers[0].param_groups[0]["lr"] == LEARNING_RATE

    for _ in range(3):
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(prepared.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b)
