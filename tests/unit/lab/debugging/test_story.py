"""The run of study `nan-hunt`: it turns NaN where a channel dies, and an epsilon mends it."""

import math
from pathlib import Path

import pytest

from peakward.lab.debugging import story
from peakward.lab.measure import probe
from peakward.records.case import NumericsCase, Source
from peakward.records.errors import PeakwardError

TEXT = Source(str(Path(__file__).parents[4] / "LICENSE"))
"""The same whatever the Python: of another text no channel may die in so short a run."""


def case(way, sizes=(2, 32, 32, 4, 40)):
    return NumericsCase(subject="hunt", way=way, sizes=sizes, text=TEXT, device="cpu")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """The rate rises faster, so that a short run is enough."""
    monkeypatch.setattr(story, "WARM_UP_STEPS", 20)


def test_the_channel_that_dies_is_found_and_mended():
    found = story.look(case(story.AS_WRITTEN), probe.environment("cpu"))
    assert found.hunt.outcome == "found"
    assert found.hunt.replayed_bitwise
    fault = found.hunt.fault
    assert fault.operator == "aten.div.Tensor"
    assert fault.module.endswith("ff.activation.rounded")
    assert fault.channel.n_nonfinite_elsewhere == 0
    assert found.hunt.cause.kind == "division by zero"
    assert found.hunt.trials[-1].passes
    assert found.hunt.trials[-1].fix == "epsilon of norm"
    assert len(found.zero_share) == fault.step + 1
    assert found.zero_share[-1] == 1.0 > found.zero_share[0]
    finite = [each for each in found.losses if each is not None]
    assert finite == list(found.losses[: fault.step])
    assert finite[-1] < 0.8 * finite[0], "it trains before it turns"


def test_mended_it_trains_to_the_end():
    found = story.look(case(story.WITH_EPSILON), probe.environment("cpu"))
    assert (found.hunt.outcome, found.zero_share) == ("finite", ())
    assert len(found.losses) == 40
    assert all(math.isfinite(each) for each in found.losses)


def test_another_way_is_refused():
    with pytest.raises(PeakwardError, match="expected a way"):
        story.look(case("by luck"), probe.environment("cpu"))
