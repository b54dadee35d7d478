"""What every test may lean on."""

import os
import shlex

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    # Read when Triton is imported, by its own functions too: before any test can import it.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A shared two-core machine stalls for longer than any deadline worth setting: count, never time.
settings.register_profile("peakward", deadline=None)
settings.load_profile("peakward")


@pytest.fixture
def micro() -> tuple[str, ...]:
    """Options of a model that builds and steps in milliseconds."""
    return tuple(
        shlex.split(
            "--model tiny --n-layers 1 --d-model 32 --d-ff 64 --n-heads 2 "
            "--batch-size 1 --seq-len 16 --device cpu"
        )
    )


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    """An empty working directory, where the default database goes."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
