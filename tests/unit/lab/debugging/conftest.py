import pytest
import torch
import torch.nn.functional as F
from torch import nn

import peakward as pw

WIDTH, N_TOKENS = 16, 11


class Feed(nn.Module):
    """A small network of the residual kind; tests plant faults by replacing its parts."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(N_TOKENS, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, N_TOKENS)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = x + block(x).relu()
        return self.head(self.norm(x))


def drawn(n=10**6):
    """Batches of ids, (4, 9) each, of one seed."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(n):
        yield torch.randint(N_TOKENS, (4, 9), generator=generator)


@pytest.fixture
def batches():
    return drawn


class Run:
    """A model, its optimizer, and a step on a batch of ids."""

    def __init__(self, model=None, optimizer=torch.optim.AdamW, lr=1e-3, **options):
        self.model = model if model is not None else Feed()
        self.optimizer = optimizer(self.model.parameters(), lr=lr, **options)
        self.n_calls = 0

    def loss(self, logits, ids):
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    def before(self, ids):
        """Called at each step with its batch."""

    def __call__(self, ids):
        self.n_calls += 1
        self.before(ids)
        self.optimizer.zero_grad()
        loss = self.loss(self.model(ids), ids)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


@pytest.fixture
def run():
    torch.manual_seed(0)
    return Run


FAULT_AT = 23


def debugged(run, batches, *, n_steps=40, **options):
    return pw.debug(
        run,
        model=run.model,
        optimizer=run.optimizer,
        batches=batches,
        n_steps=n_steps,
        snapshot_every=10,
        check_every=5,
        **options,
    )


class Within(nn.Module):
    """A function of a module's output; of the given calls alone, where some are given."""

    def __init__(self, inner, function):
        super().__init__()
        self.inner, self.function = inner, function

    def forward(self, x):
        return self.function(self.inner(x))
