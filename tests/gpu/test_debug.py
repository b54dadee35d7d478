"""A watched run on a GPU waits for the device no more often the longer it is, and finds what was planted."""

import itertools
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import peakward as pw

pytestmark = pytest.mark.gpu
WIDTH = 64


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 100)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = x + block(x).relu()
        return F.cross_entropy(self.head(self.norm(x))[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def batches():
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randint(100, (4, 32), generator=generator).pin_memory()


class Step:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def __call__(self, ids):
        self.optimizer.zero_grad()
        loss = self.model(ids.to("cuda", non_blocking=True))
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def waits(n_steps):
    torch.manual_seed(0)
    step = Step(Net().cuda())
    for ids in itertools.islice(batches(), 3):
        step(ids)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            found = pw.debug(
                step,
                model=step.model,
                optimizer=step.optimizer,
                batches=batches(),
                n_steps=n_steps,
                snapshot_every=1000,
            )
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (found.outcome, found.n_steps) == ("finite", n_steps)
    return sum("synchronizing" in str(each.message) for each in seen)


def test_no_step_waits_for_the_device():
    assert waits(200) == waits(20)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_fault_is_found_on_the_device(compiled):
    torch.manual_seed(0)
    model = Net().cuda()
    model.register_buffer("calls", torch.zeros((), device="cuda"))
    inner = model.norm.forward

    def forward(x):
        model.calls += 1
        return inner(x / torch.where(model.calls > 33, 0.0, 1.0))

    model.norm.forward = forward
    if compiled:
        for block in model.blocks:
            block.compile()
    step = Step(model)
    found = pw.debug(
        step,
        model=model,
        optimizer=step.optimizer,
        batches=batches(),
        n_steps=60,
        snapshot_every=10,
    )
    assert found.outcome == "found", found.reason
    assert found.fault.step == 33
    assert (found.fault.operator, found.fault.module) == ("aten.div.Tensor", "norm")
    assert found.cause.kind == "division by zero"


def test_a_value_of_the_backward_pass_is_placed():
    """The engine runs it in a thread of its own."""
    torch.manual_seed(0)
    model = Net().cuda()
    inner = model.norm.forward
    model.norm.forward = lambda x: inner(x) + (0 * x).square().sum(-1, keepdim=True).sqrt()
    step = Step(model)
    found = pw.debug(
        step, model=model, optimizer=step.optimizer, batches=batches(), n_steps=5, snapshot_every=10
    )
    assert (found.fault.phase, found.fault.module) == ("backward", "norm")
    assert found.fault.derivative_of == "SqrtBackward0"
