"""Snapshots bring back all that a step reads."""

import torch
from torch import nn

import peakward as pw
from peakward.lab.debugging.snapshot import Snapshot, TrainingState


def test_gradients_that_a_step_adds_to_come_back():
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2), nn.Linear(2, 1))
    model[2].requires_grad_(False)
    state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for ids in ([0, 1], [1, 4]):
        model(torch.tensor(ids)).sum().backward()
    before = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
    snapshot = Snapshot(state, 2)
    for _ in range(2):
        model(torch.tensor([2])).sum().backward()
        model[2].weight.grad = torch.ones(1, 2)
        snapshot.restore()
        for parameter, kept in zip(model.parameters(), before, strict=True):
            assert (parameter.grad is None) == (kept is None)
            assert kept is None or torch.equal(parameter.grad.to_dense(), kept.to_dense())


def test_its_size_counts_gradients():
    model = nn.Linear(3, 1, bias=False)
    state = TrainingState(model, None)
    before = Snapshot(state, 0).n_bytes
    model(torch.ones(3)).backward()
    assert Snapshot(state, 0).n_bytes == 2 * before == 24


def test_a_snapshot_between_two_updates_replays_bit_for_bit(run, batches):
    class Accumulates(run):
        def __call__(self, ids):
            loss = self.loss(self.model(ids), ids) / (self.model.calls != 45)
            loss.backward()
            self.model.calls += 1
            if self.model.calls % 4 == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            return loss.detach()

    one = Accumulates(optimizer=torch.optim.SGD)
    one.model.register_buffer("calls", torch.zeros((), dtype=torch.long))
    found = pw.debug(
        one,
        model=one.model,
        optimizer=one.optimizer,
        batches=batches(),
        n_steps=60,
        snapshot_every=10,
        check_every=5,
    )
    assert (found.snapshot_step, found.replayed_bitwise) == (30, True)
