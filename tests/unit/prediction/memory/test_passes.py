"""Runs that repeat their neighbour, against the same runs walked one by one."""

import msgspec
import pytest

from peakward.models.presets import model
from peakward.prediction.memory import passes, step
from peakward.prediction.memory.step import timeline
from peakward.records.case import Configuration, ModelCase, Workload


def found(n_layers, pass_="train_step", accumulate=1, **configuration):
    line = timeline(
        ModelCase(
            model=msgspec.structs.replace(model("small"), n_layers=n_layers),
            workload=Workload(batch_size=2, seq_len=128, pass_=pass_, accumulate=accumulate),
            configuration=Configuration(**configuration),
            device="cuda",
        )
    )
    return line.phases, line.lifetimes().tensors()


@pytest.mark.parametrize("n_layers", [5, 7, 8, 50])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"precision": "bf16-mixed", "attention": "sdpa"},
        {"norm": "fused", "precision": "bf16"},
        {"checkpointing": "every-block"},
        {"checkpointing": "selective", "attention": "flash"},
        {"checkpointing": "sqrt"},
        {"compile": "default", "attention": "sdpa"},
        {"compile": "default", "norm": "fused"},
        {"accumulate": 3},
        {"pass_": "forward"},
        {"pass_": "prefill"},
        {"pass_": "forward", "compile": "default"},
    ],
    ids=str,
)
def test_every_tensor_lives_as_if_each_run_were_walked(n_layers, settings, monkeypatch):
    short = found(n_layers, **settings)
    begin = passes.Passes.__init__

    def walked(self, *given, **how):
        begin(self, *given, **how)
        self._repeats = False

    monkeypatch.setattr(passes.Passes, "__init__", walked)
    assert short == found(n_layers, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"accumulate": 3, "precision": "bf16-mixed", "attention": "sdpa"},
        {"checkpointing": "every-block", "optimizer": "adamw-fused"},
        {"pass_": "forward_backward", "loss": "chunked"},
        {"pass_": "forward"},
        {"pass_": "decode", "attention": "sdpa"},
    ],
    ids=str,
)
def test_every_tensor_lives_as_if_the_second_step_were_walked(settings, monkeypatch):
    short = found(5, **settings)
    monkeypatch.setattr(step, "_is_tuned", lambda *_: True)
    assert short == found(5, **settings)


def test_a_deep_model_is_walked_no_further_than_a_shallow_one(monkeypatch):
    walked = []
    forward = passes.Passes.forward

    def counted(self, x, walk):
        def each(i, x):
            walked.append(i)
            return walk(i, x)

        return forward(self, x, each)

    monkeypatch.setattr(passes.Passes, "forward", counted)
    counts = []
    for n_layers in (12, 96):
        found(n_layers)
        counts.append(len(walked))
        walked.clear()
    assert counts[0] == counts[1]
