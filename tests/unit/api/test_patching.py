"""The best of a run as a patch of the user's files, checked in a process before it is given."""

import subprocess

import msgspec
import pytest

from peakward.api import patching
from peakward.lab.models.module_source import fingerprint
from peakward.records.case import AS_WRITTEN, ModuleCase, Workload
from peakward.records.errors import PeakwardError

MODEL = """\
import math

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)))

    def forward(self, x):
        T = x.size(1)
        q, k, v = self.qkv(x).unflatten(-1, (6, 8)).transpose(1, 2).chunk(3, dim=1)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.mask[:T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = att @ v
        return x + self.out(y.transpose(1, 2).flatten(2))


class Model(nn.Module):
    vocab_size = 32

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.layers = nn.ModuleDict({"h": nn.ModuleList(Block() for _ in range(2))})

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.layers.h:
            x = block(x)
        return self.head(x)
"""
BUILD = """\
import torch

from parts.model import Model


def build():
    return Model()


def train(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "model.py").write_text(MODEL)
    (tmp_path / "build.py").write_text(BUILD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def case(**settings):
    return ModuleCase(
        source="py:build:build",
        fingerprint=fingerprint("py:build:build"),
        workload=Workload(batch_size=2, seq_len=8),
        configuration=msgspec.structs.replace(AS_WRITTEN, **settings),
        device="cpu",
    )


def test_the_patched_files_compute_as_the_best(folder):
    best = case(precision="bf16-mixed", checkpointing="every-block", optimizer="adamw-fused")
    found = patching.patched(best, n_rounds=2)
    assert found.numerics.verdict == "holds"
    assert found.left == ()
    assert found.best_s > 0
    assert found.patched_s > 0
    assert (folder / "build.py").read_text() == BUILD
    subprocess.run(("git", "apply"), input=found.text.encode(), check=True)
    after = (folder / "build.py").read_text()
    assert "return faster(Model())" in after
    assert "for block in model.layers.h:" in after
    assert "lr=1e-3, fused=True)" in after
    assert (folder / "parts" / "model.py").read_text() == MODEL


def test_a_file_that_has_changed_is_refused(folder):
    best = case(precision="bf16")
    (folder / "build.py").write_text(BUILD + "\n")
    with pytest.raises(PeakwardError, match="files have changed since"):
        patching.patched(best, n_rounds=0)


def test_an_installed_file_is_refused(folder):
    place = folder / "site-packages" / "build.py"
    place.parent.mkdir()
    place.touch()
    with pytest.raises(PeakwardError, match="expected a file of yours"):
        patching.expect_theirs(place)
