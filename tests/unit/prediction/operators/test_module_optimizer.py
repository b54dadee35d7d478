"""A captured step with another form of AdamW is what a capture with that form is."""

from collections import Counter

import pytest
import torch
from torch import nn

from peakward.lab.models.module_capture import capture_module
from peakward.prediction.memory.peak import module_memory
from peakward.prediction.operators.compiled_module.step import compiled_step
from peakward.prediction.operators.module_optimizer import with_optimizer

OF_TORCH = {"adamw-fused": {"fused": True}, "adamw-loop": {"foreach": False}}
WIDTH = 64
N_TRAINED = 2 * WIDTH * 4 * WIDTH + 4 * WIDTH + 3 * WIDTH + WIDTH * WIDTH


def captured(pass_="train_step", *, compiled=False):
    """A shape that returns, and a parameter that is not trained."""
    with torch.device("meta"):
        block = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
            nn.LayerNorm(WIDTH),
        )
        model = nn.Sequential(block, nn.Linear(WIDTH, WIDTH))
        x = torch.empty(16, WIDTH)
    model[1].bias.requires_grad_(False)
    return capture_module(
        model, (x,), pass_=pass_, loss=torch.Tensor.sum, compiled=[block] if compiled else ()
    )


def update(operators):
    """The operators of the last phase that go over parameters."""
    found = Counter()
    for each in operators:
        if each.phase == "optimizer" and each.bytes_written > 100:
            found[each.name, each.bytes_read, each.bytes_written] += each.count
    return found


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("form", OF_TORCH)
def test_it_is_a_capture_with_that_form(form, compiled, monkeypatch):
    found = with_optimizer(captured(compiled=compiled), form)
    kind, options = torch.optim.AdamW, OF_TORCH[form]
    monkeypatch.setattr(torch.optim, "AdamW", lambda given, **_: kind(given, **options))
    oracle = captured(compiled=compiled)
    assert update(found.graph.operators) == update(oracle.graph.operators)
    # A loop also makes scalars.
    assert module_memory(found).peak.total_bytes == pytest.approx(
        module_memory(oracle).peak.total_bytes, abs=4096
    )
    if compiled:
        assert update(compiled_step(found).graph.operators) == update(oracle.graph.operators)


@pytest.mark.parametrize(
    ("form", "moment_bytes"),
    [("adamw-triton", 4), ("adamw-bf16-states", 2), ("adamw-8bit-states", 1 + 1 / 256)],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_our_own_launch_once_a_parameter_and_hold_their_moments(form, moment_bytes, compiled):
    found = with_optimizer(captured(compiled=compiled), form)
    operators = (compiled_step(found).graph if compiled else found.graph).operators
    assert sum(n for (name, *_), n in update(operators).items() if "peakward" in name) == 7
    held = sum(each.n_bytes for each in found.lifetimes if each.held_for == "optimizer_state")
    assert held == pytest.approx(2 * moment_bytes * N_TRAINED, rel=0.01)


def test_a_pass_without_an_update_stays():
    capture = captured("forward_backward")
    assert with_optimizer(capture, "adamw-fused") is capture
