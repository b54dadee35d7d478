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
    assert "geometric means over 4 cases (by case " in told.text, "a range, not an interval"
    assert values["least peak memory over none's"] < values["peak memory over none's"] < 1


def test_the_largest_by_mode(said, figures):
    told = next(each for each in said() if "the largest batch" in each.text)
    values = figures(told)
    assert values["every-block over none, at least"] == pytest.approx(
        values["fits with every-block"] / values["does not fit with none"]
    )
    assert told.text.startswith(
        "Under 24.0 GiB the largest batch at sequence 1024 of small: everything kept at least "
    )
    assert f"({values['does not fit with none']:,} does not fit)" in told.text


def test_a_search_that_a_timeout_ended_says_nothing_of_the_largest(said):
    def slow(case):
        big = case.memory_limit_bytes and case.configuration.checkpointing == "every-block"
        return "timeout" if big else None

    assert not any("the largest" in each.text for each in said(overrule=slow))


def test_where_nothing_fits_with_everything_kept_the_others_are_still_told(said):
    def no_room(case):
        plain = case.memory_limit_bytes and case.configuration.checkpointing == "none"
        return "oom" if plain else None

    told = next(each for each in said(overrule=no_room) if "the largest batch" in each.text)
    assert "everything kept none; every-block at least " in told.text


def test_without_keeping_everything_there_is_nothing_to_compare(said):
    def no_plain(case):
        return "timeout" if case.configuration.checkpointing == "none" else None

    assert said(overrule=no_plain) == ()


def test_nothing_ran_nothing_said(said):
    assert said(overrule=lambda case: "crashed") == ()
