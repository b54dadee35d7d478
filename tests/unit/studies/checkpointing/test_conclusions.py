"""What `checkpointing` concludes."""

import pytest

from peakward.studies import checkpointing


@pytest.fixture
def said(setting, gathered):
    def make(**options):
        here = setting()
        return checkpointing.parts(gathered(checkpointing, here, **options), here).conclusions

    return make


def test_what_a_mode_saves_and_costs(said, figures):
    told = next(each for each in said() if each.text.startswith("selective holds"))
    values = figures(told)
    assert values["cases"] == 4
    assert values["time over none's"] == pytest.approx(1.0)
    assert values["recomputed FLOPs"] == 0
    assert values["least peak memory over none's"] < values["peak memory over none's"] < 1


def test_the_largest_by_mode(said, figures):
    told = next(each for each in said() if "the largest batch" in each.text)
    values = figures(told)
    assert values["every-block over none"] == pytest.approx(
        values["largest with every-block"] / values["largest with none"]
    )
    assert told.text.startswith("Under 24.0 GiB the largest batch at sequence 1024 of small is")


def test_without_keeping_everything_there_is_nothing_to_compare(said):
    def no_plain(case):
        return "timeout" if case.configuration.checkpointing == "none" else None

    assert said(overrule=no_plain) == ()


def test_nothing_ran_nothing_said(said):
    assert said(overrule=lambda case: "crashed") == ()
