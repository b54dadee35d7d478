"""What the rules find of faults that were planted may become more, never less.

Where one of these fails for a good reason, store the results anew and say why in the commit:
`python benchmarks/planted_faults.py --device cpu --out results/DATE-cpu-planted-faults.json`.
"""

import msgspec

from faults import page
from faults.gate import regressions
from faults.judge import alarms, largest_is_first, recall
from peakward.diagnose.examine import RULES
from peakward.report import markdown


def test_no_rule_finds_less_than_stored(stored, now):
    found = regressions(stored, now)
    assert not found, "\n".join(["", *found])


def test_what_costs_most_of_the_step_is_first(now):
    late = [each.label for each in now if each.rank is not None and not largest_is_first(each)]
    assert not late


def test_nothing_fires_on_clean_programs(now):
    clean = [each for each in now if each.planted is None]
    assert len(clean) >= 10
    assert alarms(clean) == {}


def test_the_stored_figures_are_of_the_stored_programs(stored):
    assert stored.recall == recall(stored.verdicts)


def test_a_rule_that_is_silent_is_told(stored, now):
    first = next(each for each in now if each.rank == 1)
    silent = [
        msgspec.structs.replace(each, rank=None, found=()) if each is first else each
        for each in now
    ]
    assert regressions(stored, tuple(silent)) == [
        f"{first.label}: {first.planted} is no longer found"
    ]


def test_a_finding_that_falls_behind_is_told(stored, now):
    first = next(each for each in now if each.rank == 1)
    behind = [msgspec.structs.replace(each, rank=2) if each is first else each for each in now]
    assert regressions(stored, tuple(behind)) == [
        f"{first.label}: {first.planted} is ranked 2, was first"
    ]


def test_an_alarm_is_told(stored, now):
    clean = next(each for each in now if each.planted is None)
    loud = [
        msgspec.structs.replace(each, found=("BW001",)) if each is clean else each for each in now
    ]
    assert regressions(stored, tuple(loud)) == [f"{clean.label}: BW001 found where no fault is"]


def test_the_page_is_the_results(stored):
    text = markdown.render(page.document(stored))
    for rule in RULES:
        assert f"| {rule.code} |" in text
    for each in stored.verdicts:
        assert markdown.escape(each.label) in text
