"""The searches for what fits: against the fake lab's own memory."""

import msgspec
import pytest

from peakward.models.presets import model
from peakward.studies import checkpointing
from peakward.studies.cases import with_work
from peakward.studies.checkpointing.largest import (
    SEQUENCE_GRANULE,
    TOLERANCE,
    Search,
    _at,
    _most,
    found,
    searches,
)
from peakward.studies.fits import GIB
from peakward.studies.readings import Readings
from peakward.studies.scope import Scope


def test_full_searches_everything_and_corners_the_ends(setting):
    assert len(searches(setting("full"))) == 5 * 3 * 2 * 4
    corners = searches(setting())
    assert {(each.shape.name, each.limit_bytes) for each in corners} == {("small", 24 * GIB)}
    assert {each.mode for each in corners} == {"none", "every-block"}
    assert {each.axis for each in corners} == {"batch", "sequence"}


@pytest.mark.parametrize("scope", ["small", "corners", "full"])
def test_the_brackets_hold_the_true_boundary(scope, setting, gathered, true_peak):
    here = setting(scope)
    brackets = found(gathered(checkpointing, here), here)
    assert len(brackets) == len(searches(here))
    for each in brackets:
        limit, bracket = each.search.limit_bytes, each.bracket
        granule = 1 if each.search.axis == "batch" else SEQUENCE_GRANULE
        assert bracket.stopped is None
        assert bracket.too_large - bracket.fits <= max(granule, TOLERANCE[scope] * bracket.fits)
        assert true_peak(_at(each.search, bracket.too_large, here)) > limit
        if bracket.fits:
            assert true_peak(_at(each.search, bracket.fits, here)) <= limit


def test_the_grids_peaks_make_the_search_short(setting, gathered):
    here = setting()
    probes = [m for m in gathered(checkpointing, here) if m.case.memory_limit_bytes]
    assert len(probes) <= 3 * len(searches(here))


def test_what_is_on_record_is_found_again_without_measuring(setting, gathered):
    here = setting()
    readings = gathered(checkpointing, here)
    assert found(readings, here) == found(Readings(list(readings)), here)


def test_a_search_cut_short_says_so(setting, gathered):
    here = setting()
    plan = set(checkpointing.plan(here))
    grid_only = Readings(
        each for each in gathered(checkpointing, here) if (each.case, each.protocol) in plan
    )
    for each in found(grid_only, here):
        assert (each.bracket.fits, each.bracket.stopped) == (0, "not run")


def test_longer_than_the_models_own_sequence_widens_it(setting):
    search = Search(shape=model("small"), axis="sequence", mode="none", limit_bytes=GIB)
    assert _at(search, 32_768, setting()).model.max_seq_len == 32_768
    assert _at(search, 64, setting()).model == model("small")


def test_learned_positions_end_the_search(setting):
    search = Search(shape=model("gpt2"), axis="sequence", mode="none", limit_bytes=GIB)
    assert _most(search) == 1024
    assert _most(msgspec.structs.replace(search, axis="batch")) > 1024


def test_the_users_model_and_limit_are_searched(setting):
    here = setting(Scope("corners", models=(model("tiny"),), limits_bytes=(GIB,)))
    assert {(each.shape.name, each.limit_bytes) for each in searches(here)} == {("tiny", GIB)}
    assert with_work(_at(searches(here)[0], 3, here), batch_size=4).workload.batch_size == 4
