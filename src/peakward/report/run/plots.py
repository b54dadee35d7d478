"""The two plots of a run: step times by composition step, and the roofline."""

import statistics

from peakward.records.lever import Trial
from peakward.records.prediction import Prediction
from peakward.records.study import Plot, Point, Series
from peakward.report.plot_parts import FLOOR
from peakward.report.run.efficiency import (
    compulsory_bytes,
    efficiency,
    model_flops,
)
from peakward.report.run.investigation import Investigation
from peakward.report.run.investigation import Point as Configuration


def step_times(read: Investigation) -> Plot | None:
    """A bar each for the baseline, the composition's steps and the best, with floors marked.

    Baseline and best show their own measurements. A step between them shows its trial's ratio and interval,
    times its base's median in the same pairs.
    """
    bars = [_measured(0, read.baseline)]
    inner = read.steps[:-1] if read.best and read.best.step_s is not None else read.steps
    bars += [_paired(x, trial) for x, trial in enumerate(inner, start=1)]
    if read.best is not None and len(inner) < max(1, len(read.steps)):
        bars.append(_measured(len(bars), read.best))
    drawn = tuple(bar for bar in bars if bar is not None)
    if not drawn:
        return None
    floors = tuple(
        Point(x=bar.x, y=point.prediction.floor_s, label=bar.label)
        for point in read.points
        for bar in drawn
        if bar.label == point.name and point.prediction and point.prediction.floor_s is not None
    )
    series = [Series(name="measured", points=drawn)]
    if floors:
        series.append(Series(name=FLOOR, points=floors))
    return Plot(
        title="Step time",
        kind="bars",
        x_label="configuration",
        y_label="step time",
        x_unit="text",
        y_unit="s",
        series=tuple(series),
    )


def roofline(read: Investigation) -> Plot | None:
    """Baseline and best as roofline points, with a roof for each compute type."""
    placed = [
        (point.name, point.prediction, rate)
        for point in read.points
        if point.prediction and (rate := efficiency(point).flops_per_s) is not None
    ]
    roofs = {
        prediction.compute_type: prediction
        for _, prediction, _ in placed
        if prediction.matmul_flops_per_s is not None
    }
    if not placed or not roofs:
        return None
    marks = tuple(
        Series(
            name=name,
            points=(Point(x=intensity(prediction), y=rate, label=name),),
        )
        for name, prediction, rate in placed
    )
    xs = [
        *(intensity(prediction) for _, prediction, _ in placed),
        *(_ridge(prediction) for prediction in roofs.values()),
    ]
    lines = tuple(_roof(prediction, min(xs) / 4, max(xs) * 4) for prediction in roofs.values())
    return Plot(
        title="Roofline",
        kind="roofline",
        x_label="intensity (FLOP/byte)",
        y_label="model FLOP/s",
        x_unit="count",
        y_unit="flops_per_s",
        log_x=True,
        log_y=True,
        series=(*lines, *marks),
    )


def intensity(prediction: Prediction) -> float:
    """Model FLOPs over compulsory bytes of a step."""
    return (model_flops(prediction) or 0.0) / compulsory_bytes(prediction)


def _measured(x: int, point: Configuration) -> Point | None:
    summary = point.measurement.summary if point.measurement else None
    if summary is None:
        return None
    median = summary.median_s
    return Point(x=x, y=median.estimate, low=median.low, high=median.high, label=point.name)


def _paired(x: int, trial: Trial) -> Point | None:
    if trial.time_ratio is None or not trial.pairs:
        return None
    base_s = statistics.median(pair.base_s for pair in trial.pairs)
    ratio = trial.time_ratio
    return Point(
        x=x,
        y=ratio.estimate * base_s,
        low=ratio.low * base_s,
        high=ratio.high * base_s,
        label=f"step {x}: {trial.lever}",
    )


def _ridge(prediction: Prediction) -> float:
    return (prediction.matmul_flops_per_s or 0.0) / prediction.bytes_per_s


def _roof(prediction: Prediction, low: float, high: float) -> Series:
    rate = prediction.matmul_flops_per_s or 0.0
    ridge = _ridge(prediction)
    return Series(
        name=f"{prediction.compute_type} roof",
        points=(
            Point(x=low, y=low * prediction.bytes_per_s),
            Point(x=ridge, y=rate),
            Point(x=high, y=rate),
        ),
    )
