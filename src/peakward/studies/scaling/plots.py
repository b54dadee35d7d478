"""Plots of `scaling`."""

from collections.abc import Sequence

from peakward.records.study import Plot, Point
from peakward.studies.drawing import series
from peakward.studies.scaling.budgets import Allocation
from peakward.studies.scaling.experts import EVERY_BATCH, bytes_per_token, shapes
from peakward.studies.scaling.lives import Life


def sizes(allocations: Sequence[Allocation]) -> Plot:
    """Parameters by budget, a line a rule."""
    return Plot(
        title="Parameters by training budget",
        kind="lines",
        x_label="training FLOPs",
        y_label="parameters",
        x_unit="flops",
        y_unit="large_count",
        log_x=True,
        log_y=True,
        series=series(
            (each.plan.rule, Point(x=each.budget_flops, y=each.plan.n_parameters))
            for each in allocations
        ),
    )


def overtraining(lives: Sequence[Life]) -> Plot:
    """Tokens a parameter of the cheapest model, by the tokens that it serves."""
    return Plot(
        title="Tokens a parameter of the cheapest model over its life",
        kind="lines",
        x_label="served tokens",
        y_label="tokens a parameter",
        x_unit="large_count",
        y_unit="count",
        log_x=True,
        log_y=True,
        series=series(
            (
                f"{each.fit.name}, served at {each.serving_mfu:.0%}",
                Point(x=each.plan.served_tokens, y=each.plan.training.tokens_per_parameter),
            )
            for each in lives
        ),
    )


def traffic() -> Plot:
    """Bytes that a generated token takes, by batch."""
    return Plot(
        title="Bytes a generated token by batch",
        kind="lines",
        x_label="batch size",
        y_label="bytes a token",
        x_unit="count",
        y_unit="bytes",
        log_x=True,
        log_y=True,
        series=series(
            (shape.name, Point(x=batch, y=bytes_per_token(shape, batch)))
            for shape in shapes()
            for batch in EVERY_BATCH
        ),
    )
