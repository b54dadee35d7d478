"""Parts of a stored run's report."""

from math import prod

from peakward.records import codec
from peakward.records.study import Study
from peakward.report.format import format_cell
from stored_results import index
from tables.layout import faster, table


def findings(name: str) -> str:
    """What the rules found in the baseline, the costliest first."""
    rows = [
        [
            each.code,
            each.title,
            format_cell(each.held_back_s, "s"),
            format_cell(each.share, "share"),
            format_cell(each.bound, "ratio"),
        ]
        for each in _run(name).diagnoses[0].findings
    ]
    return table(["code", "finding", "time", "share", "at most"], rows, words=2)


def stack(name: str) -> str:
    """Each step of the lever stack as the proof timed it, and all up to it."""
    run = _run(name)
    trials = {each.id: each for each in run.trials}
    steps = [trials[each] for each in run.steps]
    ratios = [each.time_ratio for each in steps if each.time_ratio is not None]
    rows = [
        [
            str(number),
            each.lever,
            faster(each.time_ratio),
            format_cell(1 / prod(ratio.estimate for ratio in ratios[:number]), "ratio"),
        ]
        for number, each in enumerate(steps, 1)
    ]
    return table(["step", "lever", "speed-up (95% interval)", "cumulative"], rows, words=2)


def _run(name: str) -> Study:
    return codec.from_json(index()[name].read(), Study)
