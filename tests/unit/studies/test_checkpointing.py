"""What `checkpointing` plans, tables and concludes from known figures."""

import msgspec
import pytest

from peakward.models.presets import model
from peakward.prediction.flops import recomputed_flops
from peakward.records.measurement import MemoryUse
from peakward.report.format import format_cell
from peakward.studies import checkpointing
from peakward.studies.cases import with_work
from peakward.studies.checkpointing import (
    MODES,
    SEQUENCE_GRANULE,
    TOLERANCE,
    Search,
    _at,
    costs,
    find,
    found,
    points,
    precision,
    recomputed,
    recomputed_share,
    searches,
)
from peakward.studies.engine import view
from peakward.studies.fits import GIB
from peakward.studies.peaks import predicted_peak
from peakward.studies.readings import Readings
from peakward.studies.scope import Scope


@pytest.fixture
def said(setting, gathered):
    def make(**options):
        here = setting()
        return checkpointing.STUDY.parts(
            gathered(checkpointing.STUDY, here, **options), here
        ).conclusions

    return make


def with_peak(measurement, times=1.0):
    """The measurement, its peak so many times the predicted one."""
    peak = round(times * predicted_peak(measurement.case))
    return msgspec.structs.replace(measurement, memory=MemoryUse(peak_allocated_bytes=peak))


@pytest.fixture
def seen(setting, gathered):
    """The rows, every peak the predicted one."""
    here = setting()
    found = view(points(here), gathered(checkpointing.STUDY, here), here)
    rows = [
        msgspec.structs.replace(
            row, measurement=with_peak(row.measurement), base=with_peak(row.base)
        )
        for row in found.rows
    ]
    return msgspec.structs.replace(found, rows=tuple(rows))


def said_of(seen, rows):
    return list(costs(msgspec.structs.replace(seen, rows=tuple(rows))))


def test_what_a_mode_costs(said, figures):
    speed = next(each for each in said() if each.text.startswith("selective runs at"))
    values = figures(speed)
    for end in ("least", "largest"):
        quantity = f"{end} speed-up"
        assert values[quantity] == pytest.approx(1.0)
        assert values[f"{quantity}, low end"] < values[quantity] < values[f"{quantity}, high end"]
    (again,) = [each for each in said() if each.text.startswith("selective recomputes")]
    assert figures(again)["of the model's FLOPs, most"] == 0


def test_what_a_mode_saves_is_told_by_where_the_peak_lies(seen, figures):
    """As on an H200: of `small` at 1024 tokens the backward pass holds most, of the others the optimizer."""
    told = [each for each in costs(seen) if each.text.startswith("sqrt holds")]
    backward, optimizer = told
    share = figures(backward)["of none's, least"]
    assert share < 1
    assert backward.text == (
        f"sqrt holds {format_cell(share, 'share')} of none's peak memory, where that lies in the backward "
        "pass (small 4 × 1024 train_step)."
    )
    values = figures(optimizer)
    assert values["of none's, least"] <= values["of none's, most"]
    assert "where that lies in the optimizer's step, which holds no activations" in optimizer.text


def test_one_case_has_no_mean(said):
    def one(case):
        return None if (case.model.name, case.workload.seq_len) == ("small", 1024) else "crashed"

    told = next(each for each in said(overrule=one) if each.text.startswith("sqrt runs"))
    assert told.text.startswith("sqrt runs small 4 × 1024 train_step at 0.")


def test_a_peak_that_is_not_the_predicted_one_lies_in_no_known_phase(seen):
    """As of a CPU's process."""
    higher = [msgspec.structs.replace(row, base=with_peak(row.base, 1.1)) for row in seen.rows]
    (told, *_) = [each for each in said_of(seen, higher) if each.text.startswith("sqrt holds")]
    assert "where that lies in a phase that is not known" in told.text
    assert "lies in the" not in told.text


def test_the_largest_by_mode(said, figures):
    none, every = (figures(each) for each in said() if "the largest batch" in each.text)
    assert every["over none's, at least"] == pytest.approx(every["fits"] / none["does not fit"])
    told = next(each for each in said() if "the largest batch" in each.text)
    assert told.text.startswith(
        "Under 24.0 GiB the largest batch at sequence 1024 of small with none: fits "
    )


def test_a_search_that_a_timeout_ended_says_nothing_of_the_largest(said):
    def slow(case):
        big = case.memory_limit_bytes and case.configuration.checkpointing == "every-block"
        return "timeout" if big else None

    texts = [each.text for each in said(overrule=slow)]
    assert not any("the largest" in text and "every-block" in text for text in texts)


def test_where_nothing_fits_with_everything_kept_the_others_are_still_told(said):
    def no_room(case):
        plain = case.memory_limit_bytes and case.configuration.checkpointing == "none"
        return "oom" if plain else None

    told = next(each for each in said(overrule=no_room) if "the largest batch" in each.text)
    assert "with every-block: fits " in told.text and "over none" not in told.text


def test_without_keeping_everything_there_is_nothing_to_compare(said):
    def no_plain(case):
        return "timeout" if case.configuration.checkpointing == "none" else None

    assert said(overrule=no_plain) == ()


def test_nothing_ran_nothing_said(said):
    assert said(overrule=lambda case: "crashed") == ()


def test_size_by_sequence_by_mode(setting):
    assert len(checkpointing.STUDY.plan(setting())) == 2 * 2 * len(MODES)
    assert {case.configuration.attention for case, _ in checkpointing.STUDY.plan(setting())} == {
        "sdpa"
    }


def test_the_precision_is_the_users_or_what_the_device_trains_in(setting):
    assert precision(setting()) == "bf16-mixed"
    assert precision(setting(device="cpu")) == "fp32"
    assert precision(setting(Scope("corners", precisions=("bf16", "fp32")))) == "bf16"
    here = setting()
    volta = msgspec.structs.replace(here.environment, compute_capability="7.0")
    assert precision(msgspec.structs.replace(here, environment=volta)) == "fp32"


def test_each_mode_is_held_against_keeping_everything(setting, gathered):
    here = setting()
    found = view(points(here), gathered(checkpointing.STUDY, here), here).rows
    every = [cell for cell in found if cell.name == "every-block"]
    assert len(every) == 4
    for cell in every:
        assert recomputed(cell) == recomputed_flops(cell.point.case) > 0
        assert cell.over_base.estimate == pytest.approx(1 + recomputed_share(cell))
        assert cell.peak_share < 1
    assert {cell.over_base for cell in found if cell.name == "none"} == {None}


def test_full_searches_everything_and_corners_the_ends(setting):
    assert len(searches(setting("full"))) == 5 * 3 * 2 * 4
    corners = searches(setting())
    assert {(each.shape.name, each.limit_bytes) for each in corners} == {("small", 24 * GIB)}
    assert {each.mode for each in corners} == {"none", "every-block"}
    assert {each.axis for each in corners} == {"batch", "sequence"}


@pytest.mark.parametrize("scope", ["small", "corners", "full"])
def test_the_brackets_hold_the_true_boundary(scope, setting, gathered, true_peak):
    here = setting(scope)
    brackets = found(gathered(checkpointing.STUDY, here), here)
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
    probes = [m for m in gathered(checkpointing.STUDY, here) if m.case.memory_limit_bytes]
    assert len(probes) <= 3 * len(searches(here))


def test_what_is_on_record_is_found_again_without_measuring(setting, gathered):
    here = setting()
    readings = gathered(checkpointing.STUDY, here)
    assert found(readings, here) == found(Readings(list(readings)), here)


def test_a_search_cut_short_says_so(setting, gathered):
    here = setting()
    plan = set(checkpointing.STUDY.plan(here))
    grid_only = Readings(
        each for each in gathered(checkpointing.STUDY, here) if (each.case, each.protocol) in plan
    )
    for each in found(grid_only, here):
        assert (each.bracket.fits, each.bracket.stopped) == (0, "not run")


def test_longer_than_the_models_own_sequence_widens_it(setting):
    search = Search(shape=model("small"), axis="sequence", mode="none", limit_bytes=GIB)
    assert _at(search, 32_768, setting()).model.max_seq_len == 32_768
    assert _at(search, 64, setting()).model == model("small")


def test_learned_positions_end_the_search(setting, measure):
    here = setting()

    def fits(planned):
        return measure(*planned, here.environment)

    search = Search(shape=model("gpt2"), axis="sequence", mode="none", limit_bytes=GIB)
    assert find(search, Readings(), here, fits).bracket.fits == 1024
    batches = msgspec.structs.replace(search, axis="batch")
    assert find(batches, Readings(), here, fits).bracket.fits > 1024


def test_the_users_model_and_limit_are_searched(setting):
    here = setting(Scope("corners", models=(model("tiny"),), limits_bytes=(GIB,)))
    assert {(each.shape.name, each.limit_bytes) for each in searches(here)} == {("tiny", GIB)}
    assert with_work(_at(searches(here)[0], 3, here), batch_size=4).workload.batch_size == 4


@pytest.fixture
def parts(setting, gathered):
    def make(**options):
        here = setting()
        return checkpointing.STUDY.parts(gathered(checkpointing.STUDY, here, **options), here)

    return make


def test_a_row_a_mode_with_what_is_recomputed(parts, rows):
    found = rows(parts().tables[0])
    assert [row["checkpointing"] for row in found[:4]] == [
        "none",
        "sqrt",
        "every-block",
        "selective",
    ]
    assert [row["recomputed"] > 0 for row in found[:4]] == [False, True, True, False]
    assert (found[0]["of none's"], found[0]["over none's"]) == (1.0, None)


def test_every_row_says_where_a_peak_lies_that_is_the_predicted_one(setting, gathered, rows):
    here = setting()
    readings = gathered(checkpointing.STUDY, here)
    found = rows(checkpointing.STUDY.parts(readings, here).tables[0])
    assert None in {row["peak lies in"] for row in found}, "the fake lab has peaks of its own"
    assert all(row["predicted peak"] > 0 for row in found)
    for each in tuple(readings):
        peak = MemoryUse(peak_allocated_bytes=predicted_peak(each.case))
        if each.case.memory_limit_bytes is None:
            readings.add(msgspec.structs.replace(each, memory=peak))
    by_mode = {
        row["checkpointing"]: row["peak lies in"]
        for row in rows(checkpointing.STUDY.parts(readings, here).tables[0])
        if (row["model"], row["workload"]) == ("small", "4 × 1024 train_step")
    }
    # As on an H200, where the predicted peaks are within 0.7% of the measured ones.
    assert by_mode == {
        "none": "backward",
        "sqrt": "backward",
        "every-block": "optimizer",
        "selective": "backward",
    }


def test_out_of_memory_keeps_its_row(parts, rows):
    made = parts(
        overrule=lambda case: "oom" if case.configuration.checkpointing == "none" else None
    )
    plain = [row for row in rows(made.tables[0]) if row["checkpointing"] == "none"]
    assert {(row["status"], row["peak memory"], row["median"]) for row in plain} == {
        ("oom", None, None)
    }
    assert any("none runs out of memory" in each.text for each in made.conclusions)


def test_the_largest_batch_with_recomputation_is_over_nones(parts, rows):
    found = rows(parts().tables[1])
    none, every = found[0], found[1]
    assert (none["largest"], every["largest"]) == ("batch at sequence 1024",) * 2
    assert none["over none's"] == 1.0
    assert every["over none's"] == pytest.approx(every["fits"] / none["fits"])
    assert every["over none's"] > 2
    assert none["search"] == every["search"] == "complete"


def test_a_crash_ends_the_search_and_the_row_says_so(parts, rows):
    made = parts(overrule=lambda case: "crashed" if case.memory_limit_bytes else None)
    assert {row["search"] for row in rows(made.tables[1])} == {"ended by: crashed"}
    assert not any("largest" in each.text for each in made.conclusions)


def test_the_plot_sets_memory_against_time(parts):
    (plot,) = parts().plots
    assert len(plot.series) == 4
    for series in plot.series:
        assert {point.label for point in series.points} == {
            "none",
            "sqrt",
            "every-block",
            "selective",
        }
        assert [point.x for point in series.points] == sorted(point.x for point in series.points)
