"""Predicted memory may become better, never worse.

Where one of these fails for a good reason, store the accuracy anew and say why in the commit:
`python benchmarks/peak_memory.py --out results/DATE-all-peak-memory.json`.
"""

import msgspec
import pytest

from peaks import page
from peaks.gate import SLACK, changed_cases, regressions, turned
from peaks.judge import BAND, groups, verdict_groups
from peakward.prediction.memory.peak import peak_memory
from peakward.report import markdown

EACH = 10
"""Of so many stored peaks one is predicted again in the fast tier."""


def test_some_stored_peaks_are_predicted_no_worse(stored):
    worse = {}
    for each in stored.peaks[::EACH]:
        again = msgspec.structs.replace(each, predicted=peak_memory(each.case).peak)
        if abs(again.error) > abs(each.error) + SLACK:
            worse[each.label] = (each.error, again.error)
    assert not worse


@pytest.mark.full
def test_no_kind_of_case_is_predicted_worse_than_stored(stored, now):
    found = regressions(stored, now.peaks)
    assert not found, "\n".join(["", *found])


@pytest.mark.full
def test_the_stored_cases_are_those_that_are_predicted(stored, now):
    assert changed_cases(stored, now) == []


@pytest.mark.full
def test_no_verdict_has_turned(stored, now):
    assert turned(stored, now.verdicts) == []


def test_the_stored_figures_are_of_the_stored_cases(stored):
    assert list(stored.groups) == groups(stored.peaks)
    assert list(stored.verdict_groups) == verdict_groups(stored.verdicts)


def grown(peak, factor):
    """The peak predicted so many times as large."""
    more = round((factor - 1) * peak.predicted.total_bytes)
    predicted = msgspec.structs.replace(
        peak.predicted, workspace_bytes=peak.predicted.workspace_bytes + more
    )
    return msgspec.structs.replace(peak, predicted=predicted)


def test_a_planted_fault_is_told_by_its_kind(stored):
    now = [
        grown(each, 1.05) if each.case.model.name.startswith("llama") else each
        for each in stored.peaks
    ]
    found = regressions(stored, now)
    assert any(each.startswith("family Llama: median ") for each in found)
    assert not any("Qwen" in each for each in found)


def test_a_verdict_that_turns_is_told(stored):
    first = next(each for each in stored.verdicts if each.right)
    now = [
        msgspec.structs.replace(each, fits=not each.fits) if each is first else each
        for each in stored.verdicts
    ]
    assert turned(stored, now) == [first.label]


@pytest.mark.parametrize(("distance", "near"), [(0.9 * BAND, 1), (1.1 * BAND, 0)])
def test_what_is_near_the_limit_does_not_count(stored, distance, near):
    verdict = stored.verdicts[0]
    needed = round((1 + distance) * verdict.limit_bytes)
    (found,) = verdict_groups([msgspec.structs.replace(verdict, needed_bytes=needed)])
    assert (found.near, found.n - found.near) == (near, 1 - near)


def test_the_page_is_the_findings(stored):
    text = markdown.render(page.document(stored))
    assert f"**{len(stored.peaks)} peaks: median error " in text
    for each in stored.refused:
        assert markdown.escape(each.reason) in text
