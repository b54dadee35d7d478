"""What `nan-hunt` tells, of runs that were really watched and steps of a formula."""

from pathlib import Path

import msgspec
import pytest

from peakward.lab.debugging import story
from peakward.records.case import NumericsCase, Source
from peakward.records.profile import DeviceIdle, Idle
from peakward.studies import hunted, nan_hunt
from peakward.studies.nan_hunt import STUDY
from peakward.studies.readings import Readings

TEXT = Source(str(Path(__file__).parents[3] / "LICENSE"))
"""The same whatever the Python: of another text no channel may die in so short a run."""


@pytest.fixture
def parts(setting, measure, profile, monkeypatch):
    monkeypatch.setattr(story, "WARM_UP_STEPS", 20)
    monkeypatch.setitem(nan_hunt.RUNS, "small", (1, 40))
    monkeypatch.setattr(nan_hunt, "DECODER", (2, 32, 32, 4))

    def make(device="cpu", *, idle=None, looks=True):
        here = setting("small", device)
        readings = Readings()
        for n, (case, by) in enumerate(STUDY.plan(here)):
            made = measure(case, by, here.environment, serial=n)
            if isinstance(case, NumericsCase) and looks:
                seen = msgspec.structs.replace(case, device="cpu", text=TEXT)
                looked = story.look(seen, here.environment)
                made = msgspec.structs.replace(made, numerics=looked)
            readings.add(made)
            if idle is not None and not isinstance(case, NumericsCase):
                readings.add_profile(idling(profile(case), idle))
        return STUDY.parts(readings, here)

    return make


def idling(made, share):
    """The profile, with that share of its span idle for want of data, and as much again for other reasons."""
    span = made.profile.breakdown.together.span_ns
    device = DeviceIdle(
        device=0,
        n_gaps=2,
        idle_ns=round(2 * share * span),
        by_cause_ns={"data_loading": round(share * span), "host_bound": round(share * span)},
        longest_ns=1,
    )
    whole = msgspec.structs.replace(made.profile, idle=Idle(devices=(device,), together=device))
    return msgspec.structs.replace(made, profile=whole)


def test_the_ways_are_the_labs():
    assert list(hunted.WAYS) == list(story.WAYS)


def test_the_story_in_order(parts, rows, figures):
    made = parts()
    said = [each.text for each in made.conclusions]
    order = [
        "As written (seed 0) the loss falls from",
        "As written 1 of 1 runs turn",
        "At a tenth of the rate 0 of 1 runs turn",
        "With an epsilon in each scale 0 of 1 runs turn",
        "As written (seed 0) the first bad operator is aten.div.Tensor",
        "That channel (seed 0) is zero for",
        "Likely cause (as written, seed 0): division by zero",
        "Mended, and at the full rate,",
        "Fed on the fly, a step waits",
        "Fed by workers, a step waits",
        "Fed by workers, compiled, a step waits",
        "The mended program, fed by workers, compiled, runs",
    ]
    assert [text[: len(start)] for text, start in zip(said, order, strict=True)] == order
    assert said[5].endswith("the channel is dead.")
    outcomes = {each["run"]: each["outcome"] for each in rows(made.tables[0])}
    assert outcomes == dict(zip(story.WAYS, ("found", "finite", "finite"), strict=True))
    # The fake lab takes half of a step again on the fly, a tenth for copies, and half when compiled.
    assert figures(made.conclusions[8])["wait"] == pytest.approx(0.5 / 1.6)
    assert figures(made.conclusions[11])["speed-up"] == pytest.approx(2 * 1.6 / 1.12)


def test_gaps_are_those_of_the_profile(parts, figures):
    said = [
        each for each in parts("cuda", idle=0.25, looks=False).conclusions if "idle" in each.text
    ]
    assert len(said) == 3
    assert figures(said[0])["idle"] == pytest.approx(0.5, rel=1e-3)
    assert figures(said[0])["idle for data"] == pytest.approx(0.25, rel=1e-3)


def test_of_nothing_nothing_is_said(setting):
    assert STUDY.parts(Readings(), setting("small", "cpu")).conclusions == ()
