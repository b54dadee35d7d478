"""Batches are given again as they were, beside the random numbers of their steps."""

import collections
import copy
import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import peakward as pw
from peakward.lab.debugging.batches import Batches
from peakward.lab.debugging.values import tensors_in
from peakward.records.errors import PeakwardError

from .conftest import N_TOKENS, debugged


class Augmented(Dataset):
    """Samples of 9 ids, of which some are replaced at random whenever one is read."""

    def __len__(self):
        return 400

    def __getitem__(self, at):
        ids = torch.arange(at, at + 9) % N_TOKENS
        return ids * (torch.rand(9) < 0.9)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_step_draws_the_same_beside_a_loader_that_draws_too(run, shuffle):
    class Drops(run):
        def loss(self, logits, ids):
            kept = F.dropout(torch.ones(6), 0.5)
            return super().loss(logits, ids) - kept.sum().log()  # Infinite where all are dropped.

    one = Drops()
    found = debugged(one, DataLoader(Augmented(), batch_size=4, shuffle=shuffle), n_steps=100)
    assert (found.outcome, found.replayed_bitwise) == ("found", True)
    assert (found.fault.operator, found.fault.step) == ("aten.log.default", found.n_steps - 1)


@pytest.mark.parametrize(
    "draw",
    [random.random, np.random.random, lambda: float(torch.rand(()))],
    ids=["python", "numpy", "torch"],
)
def test_what_a_loader_draws_is_not_drawn_again(draw):
    def loader():
        for _ in range(5):
            draw()
            yield torch.zeros(1)

    batches = Batches(loader())
    drawn = []
    for n in range(4):
        assert batches.has(n)
        drawn.append(draw())
    batches.put_back_random(2)
    assert draw() == drawn[2]


class Encoding(collections.UserDict):
    """A mapping that torch does not know as a container, as a tokenizer's."""


@pytest.mark.parametrize("kind", [dict, Encoding])
def test_a_step_may_take_its_batch_apart(run, batches, kind):
    one = run()
    given = [kind(ids=ids, weight=torch.ones(())) for ids in batches(30)]
    given[13]["weight"] = torch.tensor(math.nan)

    def step(batch):
        weight = batch.pop("weight")
        loss = one.loss(one.model(batch.pop("ids")), torch.zeros(4, 9, dtype=torch.long)) * weight
        loss.backward()
        return loss.detach()

    found = pw.debug(step, model=one.model, batches=given, snapshot_every=10)
    assert (found.outcome, found.replayed_bitwise) == ("found", True)
    assert (found.fault.step, found.fault.operator, found.cause.kind) == (
        13,
        "batch 0",
        "bad batch",
    )


@pytest.mark.parametrize("n_buffers", [1, 2])
def test_a_loader_that_writes_into_its_last_batch_is_refused(run, batches, n_buffers):
    def loader():
        buffers = [torch.empty(4, 9, dtype=torch.long) for _ in range(n_buffers)]
        for n, ids in enumerate(batches(20)):
            yield buffers[n % n_buffers].copy_(ids)

    with pytest.raises(PeakwardError, match="a loader that writes one into the memory of another"):
        debugged(run(), loader())
    assert debugged(run(), map(copy.deepcopy, loader())).outcome == "finite"


def test_tensors_are_found_in_containers_and_objects():
    class Pair:
        def __init__(self, source, target):
            self.source, self.rest = source, {"target": target, "name": "pair"}

    Named = collections.namedtuple("Named", "one other")
    given = [torch.tensor(float(n)) for n in range(6)]
    batch = [given[0], Named(given[1], 3), {"a": (given[2],), "b": None}, Pair(*given[3:5])]
    found = tensors_in((batch, Encoding(x=given[5])))
    assert [id(each) for each in found] == [id(each) for each in given]


def test_containers_are_copied_and_tensors_are_not():
    inner = Encoding(x=torch.zeros(1))
    batches = Batches([{"a": [torch.ones(1)], "b": (inner,)}])
    assert batches.has(0)
    (given,) = batches.arguments(0)
    kept = batches.kept(0)
    assert given["a"][0] is kept["a"][0]
    given["a"].clear()
    del given["b"][0]["x"]
    assert len(kept["a"]) == 1
    assert "x" in inner
