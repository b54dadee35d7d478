"""A test that fails where a training step got slower than its stored baseline.

pytest examples/ci --peakward-update    # once on the machine that gates, and on purpose after it
pytest examples/ci
"""

import torch
from torch import nn


def test_a_training_step_is_as_fast_as_it_was(peakward_gate):
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(64, 256)

    def step():
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    peakward_gate(
        step,
        name="training step",
        baseline="speed.json",
        threshold=0.05,
        model=model,
        optimizer=optimizer,
    )
