"""Tables and plots of `hierarchy`."""

from collections.abc import Sequence

from peakward.prediction.time.traffic_curve import N_TENSORS
from peakward.records.calibration import Rates
from peakward.records.study import Column, Plot, Point, Table
from peakward.studies.drawing import series
from peakward.studies.hierarchy.levels import Level, fits_into
from peakward.studies.hierarchy.moves import Route, Tensor


def levels(found: Sequence[Level]) -> Table:
    """Each level beside the datasheet."""
    return Table(
        title="Levels",
        columns=(
            Column(name="level", unit="name"),
            Column(name="holds", unit="bytes"),
            Column(name="rate", unit="bytes_per_s"),
            Column(name="latency", unit="s"),
            Column(name="datasheet", unit="bytes_per_s"),
            Column(name="share", unit="share"),
        ),
        rows=tuple(
            (
                each.name,
                each.capacity_bytes,
                each.bytes_per_s,
                each.latency_s,
                each.stated_bytes_per_s,
                each.share,
            )
            for each in found
        ),
        note="Of a level: what is read, by all cores together, and a load that waits for the one "
        "before it; the best of the working sets that lie in it. Of a link or a disk: a large copy "
        "or block, and the time of a single page.",
    )


def working_sets(rates: Rates) -> Table:
    """Every working set, with the level that it lies in."""
    loads = {each.working_set_bytes: each.load_s for each in rates.latency}
    reads = {each.working_set_bytes: each.bytes_per_s for each in rates.levels}
    level_of = {each.working_set_bytes: each.level for each in rates.latency}
    level_of |= {each.working_set_bytes: each.level for each in rates.levels}
    return Table(
        title="By working set",
        columns=(
            Column(name="working set", unit="bytes"),
            Column(name="level"),
            Column(name="read", unit="bytes_per_s"),
            Column(name="a load", unit="s"),
        ),
        rows=tuple(
            (size, level, reads.get(size), loads.get(size))
            for size, level in sorted(level_of.items())
        ),
        note="Of a set without a level, a part may be found in a cache: its rate is of neither alone.",
    )


def passes(rates: Rates) -> Table:
    """Copies and additions by size, each with the level that can hold its tensors together."""
    return Table(
        title="Copies and additions by size",
        columns=(
            Column(name="operation"),
            Column(name="each tensor", unit="bytes"),
            Column(name="all tensors", unit="bytes"),
            Column(name="fit into"),
            Column(name="rate", unit="bytes_per_s"),
        ),
        rows=tuple(
            (
                each.operation,
                each.size_bytes,
                (footprint := N_TENSORS[each.operation] * each.size_bytes),
                fits_into(rates, footprint),
                each.bytes_per_s,
            )
            for each in sorted(rates.traffic, key=lambda each: (each.operation, each.size_bytes))
        ),
        note="The level that can hold all tensors of the pass, the last cache or memory. A dash: they are "
        "more than the last cache holds, but a good part of them may be found in it.",
    )


def moves(routes: Sequence[Route], tensors: Sequence[Tensor]) -> Table:
    """Time of each tensor on each way."""
    return Table(
        title="Time to move a tensor",
        columns=(
            Column(name="from → to", unit="name"),
            *(Column(name=each.name, unit="s") for each in tensors),
        ),
        rows=tuple((route.name, *(route.time_s(each) for each in tensors)) for route in routes),
        note="Computed: the latency, then the bytes at the rate; within memory, as measured copies of "
        "that size, which a cache serves as far as it holds both tensors. A dash: the place cannot hold "
        "the tensor, or a part of the time is not known.",
    )


def bandwidth(rates: Rates) -> Plot:
    """Bytes a second by size: reads of a working set, copies and additions of tensors."""
    return Plot(
        title="Bandwidth by size",
        kind="lines",
        x_label="working set, or each tensor",
        y_label="bytes a second",
        x_unit="bytes",
        y_unit="bytes_per_s",
        log_x=True,
        log_y=True,
        series=series(
            (
                *(
                    ("read", Point(x=each.working_set_bytes, y=each.bytes_per_s))
                    for each in rates.levels
                ),
                *(
                    (each.operation, Point(x=each.size_bytes, y=each.bytes_per_s))
                    for each in rates.traffic
                ),
            )
        ),
    )


def latency(rates: Rates) -> Plot:
    """Time of a load by working set."""
    return Plot(
        title="Latency by working set",
        kind="lines",
        x_label="working set",
        y_label="a load",
        x_unit="bytes",
        y_unit="s",
        log_x=True,
        log_y=True,
        series=series(
            ("load", Point(x=each.working_set_bytes, y=each.load_s)) for each in rates.latency
        ),
    )
