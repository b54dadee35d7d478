"""What `autocast` tables and concludes, from what was really seen on this CPU."""

import msgspec
import pytest
import torch

from peakward.lab.numerics import casts, subjects
from peakward.records.measurement import Measurement
from peakward.studies import autocast
from peakward.studies.readings import Readings
from peakward.studies.scope import Scope, micro

NANO = msgspec.structs.replace(
    micro(), name="nano", vocab_size=32, n_layers=1, d_model=32, d_ff=32, head_dim=8
)


CALLED = {
    "torch.mm": torch.mm,
    "torch.relu": torch.relu,
    "torch.nn.functional.mse_loss": torch.nn.functional.mse_loss,
}


@pytest.fixture
def made(setting, measure, monkeypatch):
    monkeypatch.setattr(casts, "functions", lambda: list(CALLED.items()))
    here = setting(Scope("small", models=(NANO,)), "cpu")
    readings = Readings()
    for n, (case, by) in enumerate(autocast.STUDY.plan(here)):
        bare: Measurement = measure(case, by, here.environment, serial=n)
        readings.add(msgspec.structs.replace(bare, numerics=subjects.look(case)))
    return autocast.STUDY.parts(readings, here)


def test_parameters_and_gradients_stay_in_fp32(made, rows):
    lines = rows(made.tables[1])
    assert {each["model"] for each in lines} == {"toy", "nano"}
    parameters = [each for each in lines if each["tensor"] == "parameter"]
    assert {(each["type"], each["its gradient's"]) for each in parameters} == {
        ("float32", "float32")
    }
    linear = [each for each in lines if each["of"] == "first" and each["tensor"] == "output"]
    assert {each["autocast"]: each["type"] for each in linear} == {
        "fp16": "float16",
        "bf16": "bfloat16",
    }
    assert {each["type"] for each in lines if each["tensor"] == "loss"} == {"float32"}


def test_functions_are_told_by_what_they_returned(made, rows, figures):
    lines = rows(made.tables[2])
    by = {(each["autocast"], each["function"]): each for each in lines}
    assert by["bf16", "torch.mm"]["returns"] == "bfloat16"
    assert by["bf16", "torch.nn.functional.mse_loss"]["returns"] == "float32"
    assert ("bf16", "torch.relu") not in by
    said = [each for each in made.conclusions if "that ran" in each.text]
    assert len(said) == 2
    assert figures(said[0])["functions called"] == 3
    assert figures(said[0])["functions narrowed"] == figures(said[0])["functions kept in fp32"] == 1


def test_a_models_casts_are_counted(made, rows):
    casts = {(each["model"], each["autocast"]): each["casts"] for each in rows(made.tables[0])}
    # Two weights and the input to the narrow type, the logits back for the loss.
    assert casts["toy", "fp16"] == casts["toy", "bf16"] == 4
    assert casts["nano", "bf16"] > 4


def test_of_nothing_nothing_is_said(setting):
    here = setting("small", "cpu")
    assert autocast.STUDY.parts(Readings(), here).conclusions == ()
