"""Tables of trials, whose files have shapes of their own."""

import json
from statistics import median

from peakward.records import codec
from peakward.records.measurement import Interval
from peakward.records.study import Study
from peakward.report.cases import label
from stored_results import index
from tables.layout import duration, table, times

HOST = "2026-11-22-h100-host-cost-of-calls"
LINEAR = "2026-11-23-h100-kernel-trials-linear_cross_entropy"


def host_costs() -> str:
    """Microseconds of the host for a call."""
    found = json.loads(index()[HOST].read())
    rows = [[name, f"{us:.0f} µs"] for name, us in found["us_a_call"].items()]
    said = f"{found['what']}: {found['device']}, torch {found['torch']} (`{HOST}`)."
    return f"{table(['a call of', 'costs the host'], rows, words=1)}\n\n{said}"


def linear_loss() -> str:
    """Time and peak memory of each form of the linear loss, shape by shape."""
    shapes = [
        each
        for each in json.loads(index()[LINEAR].read())["rounds"][-1]["shapes"]
        if "both" in each and "peak_mib" in each
    ]
    rows = [
        [
            " × ".join(f"{size:,}" for size in each["shape"]),
            *(
                duration(median(each["both"][form]))
                for form in ("compiled", "chunked", "recomputed")
            ),
            *(f"{each['peak_mib'][form]:,.0f}" for form in ("compiled", "chunked", "recomputed")),
        ]
        for each in sorted(shapes, key=lambda each: each["shape"])
    ]
    head = ["tokens × width × vocabulary", "torch compiled", "chunked", "recomputed"]
    head += ["peak MiB: torch", "chunked", "recomputed"]
    return f"{table(head, rows, words=1)}\n\nForward and backward, bf16: `{LINEAR}`."


def lever(*names: str) -> str:
    """What levers did to whole steps in stored runs, each against the same step without it."""
    rows = [
        [
            f"`{trial.lever}`",
            label(trial.base),
            times(_inverse(trial.time_ratio)),
            "confirmed" if trial.stage == "confirmed" else "screened once",
            f"`{result.name}`",
        ]
        for result in index().of("run")
        for trial in codec.from_json(result.read(), Study).trials
        if trial.lever in names and trial.time_ratio is not None
    ]
    head = ["lever", "on top of", "speed-up of the step", "", "result"]
    return table(head, rows, words=5)


def _inverse(ratio: Interval | None) -> Interval | None:
    if ratio is None:
        return None
    return Interval(estimate=1 / ratio.estimate, low=1 / ratio.high, high=1 / ratio.low)
