import msgspec
import pytest

from peakward.records.errors import PeakwardError
from peakward.records.measurement import Interval, Outputs
from peakward.report.document import (
    Command,
    Facts,
    Figures,
    Items,
    Note,
    Paragraph,
    PlotBlock,
    TableBlock,
)
from peakward.report.run import document
from peakward.report.run.investigation import read

replace = msgspec.structs.replace


def blocks(shown, title):
    return next(section.blocks for section in shown.sections if section.title == title)


def titles(shown):
    return [section.title for section in shown.sections]


def test_the_headline_says_what_where_and_what_came_of_it(run_study):
    shown = document(run_study)
    assert shown.title == "2.7B 4 × 512 train_step on NVIDIA H200"
    assert shown.headline == (
        "10.3× the baseline's speed, 1.00 s → 97.5 ms a step, "
        "with bf16 + compile + sdpa + fused-optimizer"
    )


def test_a_best_that_was_timed_in_pairs_alone_is_told_by_the_baselines_time(run_study):
    shown = document(replace(run_study, measurements=run_study.measurements[:1]))
    assert shown.headline.startswith("10.3× the speed of the baseline's 1.00 s a step, with bf16")


def test_a_machine_that_drifted_gets_no_times_beside_its_ratio(run_study):
    baseline, best = run_study.measurements
    slow = best.summary.median_s.__class__(estimate=3.0, low=2.9, high=3.1)
    summary = replace(best.summary, median_s=slow)
    drifted = replace(run_study, measurements=(baseline, replace(best, summary=summary)))
    shown = document(drifted)
    assert shown.headline.startswith("10.3× the baseline's speed, run in pairs, with bf16")
    assert any("speed drifted" in each.text for each in shown.blocks if isinstance(each, Note))


def test_times_that_give_another_ratio_than_the_pairs_are_told_though_their_interval_is_wide(
    run_study,
):
    """23.5× beside 60.1 ms and 1.73 ms, which are 34.7×, would contradict itself."""
    *others, last = run_study.trials
    direct = next(each for each in run_study.trials if each is read(run_study).direct)
    ratio = direct.time_ratio
    wide = replace(ratio, low=ratio.estimate / 3, high=ratio.estimate * 3)
    trials = tuple(
        replace(each, time_ratio=wide) if each is direct else each for each in (*others, last)
    )
    baseline, best = run_study.measurements
    median = best.summary.median_s
    fast = replace(
        best.summary,
        median_s=replace(median, estimate=median.estimate / 1.5, low=median.low / 1.5),
    )
    study = replace(run_study, trials=trials, measurements=(baseline, replace(best, summary=fast)))
    shown = document(study)
    assert shown.headline.startswith("10.3× the baseline's speed, run in pairs, with bf16")
    (said,) = (
        each.text for each in shown.blocks if isinstance(each, Note) and "alone" in each.text
    )
    assert said == (
        "Measured alone, minutes apart, the two medians give 15.4×, within the interval of the pairs "
        "(3.43–30.9×). Trust the pairs."
    )


def test_what_opens_the_report_comes_before_any_table(run_study):
    """How to have the best, figures, what to believe, what holds it back with its remedy."""
    panel, figures, note, lead, held_back, facts, plot = document(run_study).blocks
    best, command = panel.blocks
    assert isinstance(figures, Figures)
    assert note == Note(
        text="The best's times are throttled: SM clock 1,740 MHz at its lowest, 1,980 at its highest. "
        "To do: cool the device, raise its power limit or lock a lower clock, and run again."
    )
    assert lead == Paragraph(text="What holds the baseline back:")
    assert held_back.texts[0] == (
        "PREC001 Matrix products run on ordinary cores (828 ms, 82.5%). Operands in fp32 are multiplied in "
        'fp32, which no tensor core does. To do: torch.set_float32_matmul_precision("high") for tf32, or '
        "autocast to bf16. Levers: bf16 (in the best), tf32."
    )
    assert best == Paragraph(text="To measure the best again:")
    assert command == Command(text=run_study.best_command)
    assert {fact.name: fact.value for fact in facts.facts}["model"].startswith(
        "2.7B, 3,407,137,280 parameters (32 layers"
    )
    assert isinstance(plot, PlotBlock)


def test_no_more_than_three_findings_open_the_report_and_the_best_s_go_first(run_study):
    (diagnosis,) = run_study.diagnoses
    finding = diagnosis.findings[0]
    many = tuple(replace(finding, code=f"BW00{i}") for i in range(5))
    of_best = replace(diagnosis, case=run_study.measurements[-1].case, findings=many)
    blocks_ = document(replace(run_study, diagnoses=(diagnosis, of_best))).blocks
    assert Paragraph(text="What holds the best back (2 more below):") in blocks_
    (items,) = (each for each in blocks_ if isinstance(each, Items))
    assert [text[:5] for text in items.texts] == ["BW000", "BW001", "BW002"]


def test_a_mixture_of_experts_says_what_of_it_is_active(run_study):
    mixed = replace(run_study.measurements[0].case.model, n_experts=8, n_active_experts=2)
    measurements = tuple(
        replace(each, case=replace(each.case, model=mixed)) for each in run_study.measurements
    )
    study = replace(run_study, measurements=measurements)
    facts = next(each for each in document(study).blocks if isinstance(each, Facts))
    said = next(fact.value for fact in facts.facts if fact.name == "model")
    active = 3_407_137_280 - 32 * 6 * 3 * 2560 * 10_240
    assert said.startswith(f"2.7B, 3,407,137,280 parameters, {active:,} active (32 layers")
    assert "8 experts of which 2 active" in said


def test_the_sections_in_order(run_study):
    assert titles(document(run_study)) == [
        "Best composition",
        "Findings",
        "Floor and measured time",
        "Where the time goes",
        "Memory",
        "Levers",
        "Other good configurations",
        "Validity",
        "Numerics",
        "Notes",
        "Reproduce",
        "Conventions",
        "Environment",
    ]


def test_columns_that_say_nothing_are_left_out(run_study):
    (numerics,) = blocks(document(run_study), "Numerics")
    assert "reason" not in [column.name for column in numerics.table.columns]


def test_where_every_lever_was_refused_there_is_a_sentence_and_no_table(run_study):
    refused = (run_study.trials[2],)
    alone = replace(run_study, measurements=run_study.measurements[:1], trials=refused)
    (block,) = blocks(document(alone), "Levers")
    assert block.text.startswith("Not applicable here: sdpa-cudnn (needs the precision")


def test_the_commands_that_reproduce_it(run_study):
    shown = document(run_study)
    assert Command(text=run_study.best_command) in shown.blocks[0].blocks
    assert blocks(shown, "Reproduce") == (Command(text=run_study.command),)


def test_nothing_kept(run_study):
    alone = replace(
        run_study,
        measurements=run_study.measurements[:1],
        trials=tuple(replace(each, verdict="rejected") for each in run_study.trials[:5]),
    )
    shown = document(alone)
    assert shown.headline == "1.00 s a step; no gain confirmed among 4 levers tried"
    assert "Best composition" not in titles(shown)
    assert blocks(shown, "Reproduce")[1] == Paragraph(text="To measure the baseline again:")


def test_nothing_tried_and_ended_early(run_study):
    bare = replace(
        run_study,
        measurements=run_study.measurements[:1],
        trials=(),
        complete=False,
        predictions=(),
        profiles=(),
        memory=(),
        diagnoses=(),
        best_command=None,
        notes=(),
    )
    shown = document(bare)
    assert shown.headline == "1.00 s a step; no lever was tried"
    assert any(
        "budget ended before the run was complete" in block.text
        for block in shown.blocks
        if isinstance(block, Note)
    )
    assert titles(shown) == [
        "Floor and measured time",
        "Validity",
        "Reproduce",
        "Conventions",
        "Environment",
    ]


def test_a_baseline_that_ran_out_of_memory(run_study):
    failed = replace(
        run_study.measurements[0], status="oom", reason="no room", summary=None, phases=()
    )
    shown = document(replace(run_study, measurements=(failed, run_study.measurements[1])))
    assert "oom → 97.5 ms a step" in shown.headline
    tables = [block.table for block in blocks(shown, "Floor and measured time")
              if isinstance(block, TableBlock)]  # fmt: skip
    assert tables[0].rows[0][1] == "oom"
    warned = [block.text for block in shown.blocks if isinstance(block, Note)]
    assert "The baseline gave no time: oom: no room." in warned


def test_where_nothing_ran_the_reason_stands_on_top(run_study):
    nan = "expected a finite loss, got nan after 8 steps"
    failed = replace(
        run_study.measurements[0],
        status="invalid",
        reason=nan,
        summary=None,
        phases=(),
        memory=None,
    )
    bare = replace(
        run_study, measurements=(failed,), trials=(), steps=(), profiles=(), diagnoses=(), memory=()
    )
    shown = document(bare)
    assert shown.headline == "the baseline gave no time; no lever was tried"
    assert isinstance(shown.blocks[0], Note)
    assert shown.blocks[0].text == f"The baseline gave no time: invalid: {nan}."


def test_an_impossible_mfu_is_raised_not_printed(run_study):
    low = tuple(replace(each, peak_flops_per_s=1e12) for each in run_study.predictions)
    with pytest.raises(PeakwardError, match="at most 100%"):
        document(replace(run_study, predictions=low))


def test_medians_that_disagree_with_the_pairs_are_pointed_out(run_study):
    *others, best = run_study.measurements
    median = best.summary.median_s
    slower = replace(
        best, summary=replace(best.summary, median_s=replace(median, estimate=2 * median.estimate))
    )
    shown = document(replace(run_study, measurements=(*others, slower)))
    notes = [block.text for block in shown.blocks if isinstance(block, Note)]
    assert any("two medians give 5.1" in text and "Trust the pairs" in text for text in notes)
    assert not any(
        "Trust the pairs" in block.text
        for block in document(run_study).blocks
        if isinstance(block, Note)
    )


def test_ceilings_that_something_else_disturbed_are_noted(run_study):
    doubtful = replace(run_study.calibration, doubts=("other work took 40% of the cores",))
    (items,) = blocks(document(replace(run_study, calibration=doubtful, notes=())), "Notes")
    assert [each.split(":")[0] for each in items.texts] == [
        "When the ceilings were measured, other work took 40% of the cores"
    ]


def test_what_was_kept_for_memory_is_said_first(run_study):
    by_memory = tuple(
        msgspec.structs.replace(trial, judged_by="memory") for trial in run_study.trials
    )
    headline = document(msgspec.structs.replace(run_study, trials=by_memory)).headline
    assert headline.startswith("58.9 GiB → 25.7 GiB of peak memory; ")
    assert headline.endswith(document(run_study).headline)


def test_what_was_kept_for_energy_is_said_first(run_study):
    half = Interval(estimate=0.5, low=0.4, high=0.6)
    by_energy = tuple(
        msgspec.structs.replace(trial, judged_by="energy", energy_ratio=half)
        for trial in run_study.trials
    )
    headline = document(msgspec.structs.replace(run_study, trials=by_energy)).headline
    assert headline.startswith("0.500× the baseline's energy a step; ")


def test_outputs_that_are_not_finite_or_change_are_a_warning(run_study):
    baseline, best = run_study.measurements
    outputs = Outputs(n_values=200, n_nonfinite=1, repeats=False)
    shown = document(replace(run_study, measurements=(replace(baseline, outputs=outputs), best)))
    (warning,) = [
        each.text for each in shown.blocks if isinstance(each, Note) and "output" in each.text
    ]
    assert warning.startswith(
        "The baseline: 0.5% of the output's values are NaN or infinite; the output changes from call to "
        "call on the same input. To do: "
    )
