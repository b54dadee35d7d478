"""What `throughput` plans, tables and concludes from known figures."""

import msgspec
import pytest

from peakward.studies.engine import view
from peakward.studies.fits import GIB, fit, limits
from peakward.studies.peaks import CATEGORIES, OTHER, predicted_peak
from peakward.studies.readings import Readings
from peakward.studies.scope import Scope
from peakward.studies.throughput import STUDY, points, precisions, speeds, ways


@pytest.fixture
def seen(setting, gathered):
    """The rows of a lab that measured the grid."""

    def make(scope="corners", **options):
        here = setting(scope)
        return view(points(here), gathered(STUDY, here, **options), here)

    return make


@pytest.fixture
def said(setting, gathered):
    """The conclusions that begin so."""

    def make(*beginnings, scope="corners", predicted=False, **options):
        here = setting(scope)
        readings = gathered(STUDY, here, **options)
        for each in [as_predicted(each) for each in readings] if predicted else ():
            readings.add(each)
        found = STUDY.parts(readings, here).conclusions
        return [each for each in found if each.text.startswith(beginnings or "")]

    return make


def as_predicted(found):
    """The measurement, its peak without a limit the predicted one."""
    if found.status != "ok" or found.case.memory_limit_bytes:
        return found
    peak = predicted_peak(found.case)
    memory = msgspec.structs.replace(found.memory, peak_allocated_bytes=peak)
    return msgspec.structs.replace(found, memory=memory)


SIZES = "Sizes that train under"


def test_the_lowest_precision_gets_the_additions_and_in_full_every_lower_one(setting):
    def helped(scope):
        return {way.precision for way in points(setting(scope)) if way.against not in ("", "fp32")}

    assert helped("corners") == {"bf16"}
    assert helped("full") == {"bf16-mixed", "bf16"}


def test_the_users_limits_replace_the_cards(setting):
    assert limits(setting(Scope("full", limits_bytes=(48 * GIB,)))) == (48 * GIB,)


def test_a_cpus_limits_are_scaled_down(setting):
    assert max(limits(setting("small", "cpu"))) < GIB


def test_every_limit_is_settled_and_agrees_with_the_truth(seen, true_peak):
    found = seen()
    for row in ways(found):
        for limit in limits(found.setting):
            verdict = fit(row.point, limit, found.readings, found.setting)
            assert verdict is not None
            assert verdict.verdict == ("fits" if true_peak(row.point.case) <= limit else "oom")


def test_what_is_settled_is_not_run(setting, gathered):
    here = setting()
    under_a_limit = [m for m in gathered(STUDY, here) if m.case.memory_limit_bytes]
    assert under_a_limit, "something is not settled by the runs without a limit"
    assert (
        len(under_a_limit)
        < len([each for each in points(here) if each.trains]) * len(limits(here)) / 2
    )
    assert {each.status for each in under_a_limit} == {"oom"}, "what fits is told by its own peak"


def test_the_sizes_that_only_a_lower_precision_trains(said):
    texts = [each.text.partition("; bf16 + ")[0] for each in said(SIZES)]
    assert texts == [
        "Sizes that train under 24.0 GiB: fp32 1 of 2; bf16-mixed 1 of 2; bf16 1 of 2",
        "Sizes that train under 40.0 GiB: fp32 1 of 2; bf16-mixed 1 of 2; bf16 2 of 2 (2.7B not in fp32)",
        "Sizes that train under 80.0 GiB: fp32 2 of 2; bf16-mixed 2 of 2; bf16 2 of 2",
    ]


def test_a_size_that_crashed_is_not_counted(said):
    def crash(case):
        small_fp32 = case.model.name == "small" and case.configuration.precision == "fp32"
        return "crashed" if small_fp32 else None

    assert "fp32 0 of 1; bf16-mixed 1 of 2" in said(SIZES, overrule=crash)[0].text


def test_what_an_addition_lets_train(said):
    """In a world where only 2.7B with checkpointing stays under 40 GiB."""

    def full(case):
        if case.model.name != "2.7B" or case.configuration.checkpointing != "none":
            return None
        limit = case.memory_limit_bytes
        return "oom" if limit and limit < 50 * 2**30 else None

    def world(case):
        bf16 = case.configuration.precision == "bf16" and case.workload.pass_ == "train_step"
        unlimited = case.memory_limit_bytes is None
        return (
            "oom"
            if bf16 and unlimited and case.configuration.checkpointing == "none"
            else full(case)
        )

    (_, text, _) = (each.text for each in said(SIZES, overrule=world))
    assert "bf16 0 of 2" in text
    assert "; bf16 + checkpointing 2 of 2 (small, 2.7B not in bf16); " in text


def test_mixed_precision_keeps_its_states(said, figures):
    (by_category,) = [
        each for each in said("At its peak", predicted=True) if "bf16-mixed" in each.text
    ]
    told = figures(by_category)
    states = "parameters, gradients and optimizer state"
    assert told[states] == told[f"{states}, before"], "both keep them in fp32"
    assert told["casts of weights"] > 0 == told["casts of weights, before"]
    assert told["activations and logits"] < told["activations and logits, before"]


def test_pure_bf16_halves_the_states(said, figures):
    *_, by_category = said("At its peak", predicted=True)
    told = figures(by_category)
    states = "parameters, gradients and optimizer state"
    assert told[states] == pytest.approx(told[f"{states}, before"] / 2, rel=1e-3)
    (price,) = said("bf16 against fp32:", predicted=True)
    assert figures(price)["peak memory, 2.7B"] < 0.75


def test_peaks_that_are_not_the_predicted_ones_are_not_told_by_category(said):
    """As on a CPU, where the process is measured."""
    assert not said("At its peak")
    assert len(said("bf16-mixed against fp32:", "bf16 against fp32:")) == 2


def test_a_boundary_that_moves_the_other_way_is_said(said):
    """Casts of weights may make mixed precision the larger: 85.9 against 85.4 GiB of 2.7B on an H200."""

    def mixed_is_larger(case):
        return "oom" if case.configuration.precision == "bf16-mixed" else None

    *_, text = (each.text for each in said(SIZES, overrule=mixed_is_larger))
    assert "bf16-mixed 0 of 2 (small, 2.7B in fp32 alone)" in text


def test_a_precision_without_fp32_beside_it_has_no_price(said):
    def no_base(case):
        return "crashed" if case.configuration.precision == "fp32" else None

    assert said("bf16-mixed against", "bf16 against", overrule=no_base) == []


def test_the_price_of_an_addition_by_size(said, figures):
    (price,) = said("bf16 + flash attention against bf16:")
    told = figures(price)
    assert told["time, small"] == pytest.approx(1.0)
    assert told["time, small, low end"] < 1.0 < told["time, small, high end"]
    assert told["peak memory, small"] < told["peak memory, 2.7B"] < 1.0


def test_nothing_ran_nothing_said(said):
    assert said(overrule=lambda case: "timeout") == []


def test_fp32_is_always_there_and_first(setting):
    here = setting(Scope("corners", precisions=("bf16", "tf32")))
    assert precisions(here) == ("fp32", "bf16", "tf32")


def test_tf32_only_where_it_is_listed(setting):
    assert "tf32" not in precisions(setting())


def test_what_the_machine_cannot_run_is_not_planned(setting):
    here = setting(Scope("small", precisions=("tf32", "bf16")), "cpu")
    assert {case.configuration.precision for case, _ in STUDY.plan(here)} == {"fp32", "bf16"}
    assert STUDY.parts(Readings(), here).notes[:1] == (
        "Not run here: precision tf32 needs a CUDA GPU, got a CPU.",
    )


def test_every_row_is_held_against_fp32_of_the_same_work(seen):
    cells = speeds(seen())
    assert len(cells) == 24
    factors = {"fp32": 1.0, "bf16-mixed": 5.0, "bf16": 8.0}
    known = [cell for cell in cells if cell.speed is not None]
    assert known
    for cell in known:
        assert cell.speed.estimate == pytest.approx(
            factors[cell.point.case.configuration.precision]
        )


def test_each_precision_and_pass_has_its_range(said, figures):
    told = said("bf16 ", "bf16-mixed ")[:4]
    assert figures(told[0])["least speed-up"] == pytest.approx(5.0)
    assert figures(told[1])["speed-up of 2.7B"] == pytest.approx(8.0)


def test_growth_with_the_sequence_needs_three_lengths(said, figures):
    assert not any("power" in each.text for each in said())
    (fp32, *_) = [each for each in said(scope="full") if "power" in each.text]
    assert fp32.text.startswith("In fp32 the train step of 2.7B")
    told = figures(fp32)
    assert told["exponent"] == pytest.approx(1.0, abs=0.1)
    assert told["exponent, low end"] < told["exponent"] < told["exponent, high end"]
    seconds = {each.quantity for each in fp32.evidence if each.unit == "s"}
    assert seconds == {"time at the least", "time at the largest"}, "so that doubts show"


def test_without_fp32_nothing_is_gained(said):
    def no_fp32(case):
        return "oom" if case.configuration.precision == "fp32" else None

    assert [each for each in said(overrule=no_fp32) if "speed of fp32" in each.text] == []


def test_the_report_says_what_is_called_flash_attention(setting, gathered):
    here = setting()
    notes = STUDY.parts(gathered(STUDY, here), here).notes
    assert any("torch's scaled_dot_product_attention" in each for each in notes)


@pytest.fixture
def parts(setting, gathered):
    def make(**options):
        here = setting()
        return STUDY.parts(gathered(STUDY, here, **options), here)

    return make


def test_a_row_for_every_cell_and_a_column_for_every_limit(parts, rows):
    speeds, memory, _ = parts().tables
    assert len(speeds.rows) == 24
    assert {"24.0 GiB", "40.0 GiB", "80.0 GiB"} <= {column.name for column in memory.columns}


def test_out_of_memory_keeps_its_row(parts, rows):
    speeds, memory, _ = parts(overrule=lambda case: "oom").tables
    assert {row["status"] for row in rows(speeds)} == {"oom"}
    assert {row["throughput"] for row in rows(speeds)} == {None}
    assert {row["24.0 GiB"] for row in rows(memory)} == {"oom"}
    assert {row["peak, no limit"] for row in rows(memory)} == {"oom"}


def test_categories_of_every_way_add_up_to_its_predicted_peak(parts, rows):
    *_, held = parts().tables
    for row in rows(held):
        assert row["predicted peak"] == sum(row[name] for name in (*CATEGORIES, OTHER))


def test_the_plots_hold_the_cases_that_ran(parts):
    by_size, by_length = parts(
        overrule=lambda case: "oom" if case.configuration.precision == "bf16" else None
    ).plots
    assert [each.name for each in by_size.series] == [
        "bf16-mixed, forward",
        "bf16-mixed, train_step",
    ]
    assert {each.name for each in by_length.series} == {
        f"{size}, {precision}" for size in ("small", "2.7B") for precision in ("fp32", "bf16-mixed")
    }
