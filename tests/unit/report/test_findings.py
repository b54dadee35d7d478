"""What the rules found, as blocks."""

import msgspec

from peakward.records.finding import Abstention, Diagnosis, Finding, FindingEvidence, LeverGain
from peakward.records.measurement import Interval
from peakward.report.document import Items, Note, Paragraph, TableBlock
from peakward.report.findings import (
    blocks,
    brief,
    evidence,
    lever_table,
    ranking,
    told,
)

GUESS = Interval(estimate=1.5, low=1.2, high=1.8, level=0.9)
CUT = msgspec.structs.replace(GUESS, estimate=1.3, high=1.3)


def gain(name, predicted=GUESS, cut=CUT, saved=None, source="prediction for NVIDIA H200"):
    return LeverGain(lever=name, predicted=predicted, gain=cut, saved_bytes=saved, source=source)


def finding(*gains):
    evidence = FindingEvidence(name="idle", value=0.2, unit="s", stored="profile idle")
    return Finding(
        code="HOST002",
        title="Slow launches",
        cause="The GPU waits.",
        evidence=(evidence,),
        advice="compile",
        gains=gains,
        held_back_s=0.2,
        beyond_s=0.1,
        share=0.25,
        bound=1.333,
    )


def diagnosis(*findings, case=None, **others):
    made = Diagnosis(
        subject="by hand",
        case=case,
        whole_s=0.8,
        basis="profiled step",
        findings=findings,
        abstentions=(
            Abstention(code="BW004", missing=("a case",)),
            Abstention(code="GEN002", missing=("a case", "a measurement")),
        ),
        clean=("HOST001",),
    )
    return msgspec.structs.replace(made, **others)


def texts(found, kind):
    return [each.text for each in found if isinstance(each, kind)]


def test_a_finding_is_a_row_and_a_sentence():
    found = diagnosis(finding(gain("compile")))
    ((*row,),) = ranking(found).rows
    assert row == ["HOST002", "Slow launches", 0.2, None, 0.25, 0.1, 1.333]
    assert told(found.findings[0]) == "HOST002: The GPU waits. To do: compile. Levers: compile."
    assert evidence(found).rows == (("HOST002", "idle", "200 ms", "profile idle"),)


def test_missing_signals_are_said_once_each():
    (note,) = texts(brief(diagnosis(finding())), Note)
    assert (
        note == "2 rules could not judge. Missing: a case (BW004, GEN002); a measurement (GEN002)."
    )


def test_one_screen_has_no_sentences():
    found = diagnosis(finding(gain("compile")))
    assert not any(isinstance(each, Items) for each in brief(found))
    assert any(isinstance(each, Items) for each in blocks(found))


def test_nothing_found_says_by_how_many_rules():
    shown = blocks(diagnosis())
    assert texts(shown, Paragraph) == ["The 1 rule that could judge found nothing."]
    assert not any(isinstance(each, TableBlock) for each in shown)


def test_predicted_stands_beside_measured_on_the_same_base(studies):
    b = studies.BASELINE
    found = diagnosis(finding(gain("compile"), gain("sdpa", None, None)), case=b)
    rows = {row[1]: row for row in lever_table(found, studies.trials()).rows}
    # The screened trial of `compile` is on the baseline, the confirmed one is not.
    assert rows["compile"][2:5] == (
        "1.30× (1.20–1.30×)",
        "1.50× (1.20–1.80×)",
        "1.087× (1.082–1.092×) screened",
    )
    assert rows["sdpa"][2:4] == (None, None)
    assert rows["sdpa"][4].startswith("1.06")
    assert rows["sdpa"][4].endswith("screened")


def test_what_was_confirmed_is_said_to_be_measured_in_pairs(studies):
    confirmed = next(each for each in studies.trials() if each.stage == "confirmed" and each.pairs)
    found = diagnosis(finding(gain(confirmed.lever)), case=confirmed.base)
    (row,) = lever_table(found, (confirmed,)).rows
    assert row[4].endswith(")")


def test_the_note_is_of_the_columns_that_are_there(studies):
    unpredicted = gain("sdpa", None, None, source="not computed: a CPU")
    found = diagnosis(finding(unpredicted), case=studies.BASELINE)
    measured = lever_table(found, studies.trials()).note
    assert measured.startswith("Speed-ups with their intervals, of measurements 95%. Measured: ")
    assert "redicted" not in measured
    predicted = lever_table(diagnosis(finding(gain("compile"))), ()).note
    assert predicted.startswith(
        "Speed-ups with their intervals, of predictions 90%. Through this: "
    )
    assert "Measured" not in predicted


def test_why_a_gain_was_not_computed_is_said():
    without = gain("compile", None, None, source="not computed: no case")
    assert (
        texts(blocks(diagnosis(finding(without))), Note)[0]
        == "Gain of compile not computed: no case."
    )
