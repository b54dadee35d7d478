"""Two studies to a study of their ratios."""

import io

import msgspec
import pytest
from rich.console import Console

from peakward.records.errors import PeakwardError
from peakward.records.measurement import MemoryUse, Protocol, Run, Validity
from peakward.report.terminal import lay_out
from peakward.studies import comparison


def verdicts(before, after):
    return [each.verdict for each in comparison.changes(before, after, threshold=0.03)]


def test_each_case_is_judged_by_the_interval_of_its_ratio(make_study, make_measurement):
    before = make_study(*(make_measurement(n) for n in (8, 16, 32)))
    after = make_study(
        make_measurement(8, 2e-3), make_measurement(16, 0.5e-3), make_measurement(32, 1.001e-3)
    )
    assert verdicts(before, after) == ["slower", "same", "faster"]
    stopped = comparison.regressions(comparison.changes(before, after, threshold=0.03))
    assert [each.after.case.workload.seq_len for each in stopped] == [8]


def test_a_case_that_no_longer_runs_is_a_regression_and_one_that_now_does_is_not(
    make_study, make_measurement
):
    before = make_study(*(make_measurement(n, t) for n, t in ((8, 1e-3), (16, None), (32, None))))
    after = make_study(*(make_measurement(n, t) for n, t in ((8, None), (16, 1e-3), (32, None))))
    found = comparison.changes(before, after, threshold=0.03)
    assert [each.verdict for each in found] == ["broken", "not measured", "mended"]
    assert [each.reason for each in found] == ["ok, then oom", "oom, then oom", "oom, then ok"]
    assert comparison.regressions(found) == (found[0],)


def test_the_worst_comes_first(make_study, make_measurement):
    after_s = {1: 1e-3, 2: 0.5e-3, 3: 1.5e-3, 4: None, 5: 3e-3, 7: 2e-3, 8: 0.9e-3}
    before = make_study(*(make_measurement(n) for n in range(1, 9)))
    after = make_study(*(make_measurement(n, median_s) for n, median_s in after_s.items()))
    found = comparison.changes(before, after, threshold=0.03)
    assert [(each.before.case.workload.seq_len, each.verdict) for each in found] == [
        (4, "broken"),
        (6, "missing"),
        (5, "slower"),
        (7, "slower"),
        (3, "slower"),
        (1, "same"),
        (8, "faster"),
        (2, "faster"),
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_row_begins_with_its_case_s_name_at_every_width(width, make_study, make_measurement):
    study = together(
        make_study(*(make_measurement(n) for n in (8, 16))),
        make_study(make_measurement(8, 2e-3), make_measurement(16, 3e-3)),
    )
    (table,) = study.tables
    console = Console(file=io.StringIO(), width=width)
    for part in lay_out(table, width):
        console.print(part)
    grids = console.file.getvalue().count("case ")
    said = [line.split("  ")[0] for line in console.file.getvalue().splitlines()]
    first_column = " ".join(" ".join(said).split())
    for row in table.rows:
        assert first_column.count(str(row[0])) == grids >= 1


@pytest.mark.parametrize("edit", [{"low": 0.0}, {"estimate": 0.0}, {"level": 0.9}])
def test_medians_without_a_ratio_are_bad_input(edit, make_study, make_measurement):
    edited = make_measurement(8)
    median_s = msgspec.structs.replace(edited.summary.median_s, **edit)
    summary = msgspec.structs.replace(edited.summary, median_s=median_s)
    edited = msgspec.structs.replace(edited, summary=summary)
    for pair in ((edited, make_measurement(8)), (make_measurement(8), edited)):
        with pytest.raises(PeakwardError, match=r"expected step times of .* that can be compared"):
            comparison.changes(*map(make_study, pair), threshold=0.03)


def test_what_cannot_carry_a_verdict_is_inconclusive_with_its_reason(make_study, make_measurement):
    hot = Validity(verdict="throttled", reasons=("clock fell to 900 MHz",))
    few = make_measurement(8, 2e-3)
    few = msgspec.structs.replace(few, summary=msgspec.structs.replace(few.summary, n=4))
    before = make_study(make_measurement(8), make_measurement(16))
    after = make_study(few, make_measurement(16, 2e-3, validity=hot))
    found = comparison.changes(before, after, threshold=0.03)
    assert [each.verdict for each in found] == ["inconclusive"] * 2
    assert [each.reason for each in found] == [
        "4 timed steps, 5 needed",
        "throttled: clock fell to 900 MHz",
    ]


@pytest.mark.parametrize(
    ("verdict", "change"), [("stable", "slower"), ("unstable", "inconclusive")]
)
def test_an_unstable_time_is_known_no_better_than_its_steps(
    verdict, change, make_study, make_measurement
):
    """Its median's own interval is narrow, but half of its steps were as fast as before."""
    steps_s = (1e-3,) * 9 + (1.4e-3,) * 10
    two_modes = Validity(verdict=verdict, reasons=("two modes",))
    after = make_measurement(
        8, 1.4e-3, validity=two_modes, runs=(Run(warmup_s=(), steps_s=steps_s),)
    )
    assert verdicts(make_study(make_measurement(8)), make_study(after)) == [change]


@pytest.mark.parametrize(("n_fast", "change"), [(4, "inconclusive"), (1, "slower")])
def test_an_unstable_time_is_anything_from_the_5th_to_the_95th_percentile(
    n_fast, change, make_study, make_measurement
):
    steps_s = (1e-3,) * n_fast + (1.4e-3,) * (50 - n_fast)
    rare = Validity(verdict="unstable", reasons=("two modes",))
    after = make_measurement(8, 1.4e-3, validity=rare, runs=(Run(warmup_s=(), steps_s=steps_s),))
    assert verdicts(make_study(make_measurement(8)), make_study(after)) == [change]


def test_only_measurements_with_the_same_warm_up_meet(make_study, make_measurement):
    cold = make_measurement(8, protocol=Protocol(warmup_steps=0))
    longer = make_measurement(8, protocol=Protocol(max_timed_s=9.0))
    plain = make_study(make_measurement(8))
    assert verdicts(plain, make_study(cold)) == ["missing"]
    assert verdicts(plain, make_study(longer)) == ["same"]


def test_differences_name_what_must_agree_and_nothing_else(make_measurement):
    here = make_measurement().environment
    assert comparison.differences(here, here) == ()
    another_card = msgspec.structs.replace(here, device_uuid="GPU-1", peakward="9.9")
    assert comparison.differences(here, another_card) == ()
    there = msgspec.structs.replace(here, torch="2.14.0", n_cores=8)
    assert comparison.differences(here, there) == (
        "n_cores: 2, then 8",
        "torch: 2.13.0, then 2.14.0",
    )


def together(before, after):
    found = comparison.changes(before, after, threshold=0.03)
    return comparison.study(before, after, found, threshold=0.03, command="peakward compare a b")


def test_the_study_holds_what_it_says(make_study, make_measurement):
    before = make_study(make_measurement(8), make_measurement(16), make_measurement(64))
    less = MemoryUse(peak_allocated_bytes=2**18)
    after = make_study(make_measurement(8, 2e-3, memory=less), make_measurement(16))
    study = together(before, after)
    (table,) = study.tables
    assert [row[6] for row in table.rows] == [None, 0.25, 1.0]
    assert [column.name for column in table.columns][:3] == ["case", "before", "after"]
    assert table.rows[1][1:4] == (1e-3, 2e-3, pytest.approx(2.0))
    assert [row[7] for row in table.rows] == ["missing", "slower", "same"]
    (conclusion,) = study.conclusions
    assert conclusion.text == "3 cases compared: 1 missing, 1 same, 1 slower."
    assert [(each.quantity, each.value) for each in conclusion.evidence] == [
        ("cases", 3),
        ("missing", 1),
        ("same", 1),
        ("slower", 1),
    ]
    known = {each.id for each in study.measurements}
    assert all(set(each.from_ids) <= known for each in conclusion.evidence)
    assert any("regressions: 1 case that ran before." in note for note in study.notes)


def test_a_case_that_the_study_after_lacks_is_a_regression_if_it_ran(make_study, make_measurement):
    before = make_study(make_measurement(8), make_measurement(16), make_measurement(32, None))
    after = make_study(make_measurement(8), complete=False)
    found = comparison.changes(before, after, threshold=0.03)
    assert [each.verdict for each in found] == ["missing", "same"]
    assert found[0].reason == "not in the study after, which is incomplete"
    assert comparison.regressions(found) == (found[0],)
    notes = together(before, after).notes
    assert "The study after is incomplete." in notes
    assert "Only in the study before, and left out: 1 case." in notes


def test_a_run_that_found_another_composition_lacks_nothing(make_study, make_measurement):
    before, after = (
        msgspec.structs.replace(make_study(*map(make_measurement, sizes)), name="run")
        for sizes in ((8, 16), (8, 32))
    )
    assert verdicts(before, after) == ["same"]


def test_cases_new_in_the_study_after_are_no_regression(make_study, make_measurement):
    before, after = make_study(make_measurement(8)), make_study(*map(make_measurement, (8, 16)))
    assert verdicts(before, after) == ["same"]
    assert "Only in the study after, and left out: 1 case." in together(before, after).notes


def test_across_devices_every_column_names_its_own(make_study, make_measurement):
    before = make_study(make_measurement(8))
    other = msgspec.structs.replace(before.environment, device_name="Other CPU")
    after = make_study(make_measurement(8), environment=other)
    study = together(before, after)
    assert [column.name for column in study.tables[0].columns][1:3] == [
        "before, Example CPU",
        "after, Other CPU",
    ]
    assert any("device_name: Example CPU, then Other CPU" in note for note in study.notes)


def test_nothing_in_common_is_an_error(make_study, make_measurement):
    with pytest.raises(PeakwardError, match="expected a case that both studies measured"):
        together(make_study(make_measurement(8)), make_study(make_measurement(16)))
