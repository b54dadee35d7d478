"""Study `collectives`: rates and latencies by size and number of ranks, with the fitted model."""

from collections.abc import Iterator

from peakward.records.case import CollectivesCase, DeviceType
from peakward.records.parallel import CollectiveTime, LinkCalibration, LinkFit
from peakward.records.study import Conclusion
from peakward.stats.link_fit import bus_bytes
from peakward.studies import values
from peakward.studies.claims import Sentence
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.setting import Setting
from peakward.studies.values import REASON, STATUS, Value, of_row, plot, table, text

RANKS = {"small": (2,), "corners": (2, 4), "full": (2, 4, 6)}
SIZES = {
    "small": (10**5, 10**6),
    "corners": (10**6, 10**7, 10**8),
    "full": (10**6, 10**7, 10**8, 10**9),
}
"""Bytes."""
BACKENDS: dict[DeviceType, str] = {"cuda": "NCCL", "cpu": "gloo"}
Group = Point[CollectivesCase]
Line = tuple[Row[Group], CollectiveTime]


def points(setting: Setting) -> Iterator[Group]:
    """NCCL where there are GPUs, and gloo, between each number of ranks."""
    name, protocol = setting.scope.name, setting.protocol(phases=False)
    devices: tuple[DeviceType, ...] = ("cuda", "cpu") if setting.device == "cuda" else ("cpu",)
    for device in devices:
        for n in RANKS[name]:
            yield Point(
                case=CollectivesCase(n_ranks=n, sizes_bytes=SIZES[name], device=device),
                protocol=protocol,
                name=f"{n} ranks over {BACKENDS[device]}",
                absent=setting.absent_ranks(n, device),
            )


def found(row: Row[Group]) -> LinkCalibration | None:
    """None unless the case ended `ok`."""
    return None if row.measurement is None else row.measurement.collectives


def lines(view: View[Group]) -> Iterator[Line]:
    """Each collective of each size, with its row."""
    for row in view.rows:
        for each in own.times if (own := found(row)) else ():
            yield row, each


def fits(view: View[Group]) -> Iterator[tuple[Row[Group], LinkFit]]:
    """Each collective's model, with its row."""
    for row in view.rows:
        for each in own.fits if (own := found(row)) else ():
            yield row, each


def over_fit(line: Line) -> float | None:
    """The measured time over that of the fitted model."""
    row, time = line
    own = found(row)
    fit = (
        next((each for each in own.fits if each.collective == time.collective), None)
        if own
        else None
    )
    if fit is None:
        return None
    sent = bus_bytes(time.collective, time.n_bytes, row.point.case.n_ranks)
    return time.time_s / (fit.latency_s + sent / fit.bus_bytes_per_s)


def rates(view: View[Group]) -> Iterator[Conclusion]:
    """Each group's all-reduce: its rate at the largest size, its latency and rate by the model, and the size
    from which on it reaches half of that rate."""
    for row, fit in fits(view):
        if fit.collective != "all-reduce":
            continue
        own = found(row)
        assert own is not None
        last = max(
            (each for each in own.times if each.collective == fit.collective),
            key=lambda each: each.n_bytes,
        )
        share = bus_bytes(fit.collective, 1.0, row.point.case.n_ranks)
        half = fit.latency_s * fit.bus_bytes_per_s / share
        told, behind = Sentence(), row.measurement
        yield from told.end(
            f"{row.name}: an all-reduce of {told('size', last.n_bytes, 'bytes', behind)} moves "
            f"{told('bus rate', last.bus_bytes_per_s, 'bytes_per_s', behind)} a rank. The model is "
            f"{told('latency', fit.latency_s, 's', behind)} and "
            f"{told('fitted rate', fit.bus_bytes_per_s, 'bytes_per_s', behind)}, at most "
            f"{told('largest error', fit.worst_error, 'share', behind)} off; by it, half of that rate is "
            f"reached at {told('half rate at', half, 'bytes', behind)}."
        )


def against_reduce(view: View[Group]) -> Iterator[Conclusion]:
    """How the other collectives' largest rate stands to the all-reduce's."""
    for row in view.rows:
        own = found(row)
        if own is None:
            continue
        largest = max(each.n_bytes for each in own.times)
        rate = {
            each.collective: each.bus_bytes_per_s for each in own.times if each.n_bytes == largest
        }
        told = Sentence()
        named = ", ".join(
            f"{name} {told(name, each / rate['all-reduce'], 'ratio', row.measurement)}"
            for name, each in rate.items()
            if name != "all-reduce"
        )
        size = told("size", largest, "bytes", row.measurement)
        yield from told.end(f"{row.name}, {size}: over the bus rate of all-reduce, {named}.")


def more_ranks(view: View[Group]) -> Iterator[Conclusion]:
    """What an all-reduce of the largest size takes between the most ranks, over the fewest."""
    timed = [row for row in view.rows if row.time is not None]
    for group in values.groups(timed, lambda row: row.point.case.device):
        first, last = group[0], group[-1]
        if first == last or first.median_s is None or last.median_s is None:
            continue
        told, behind = Sentence(), (first.measurement, last.measurement)
        times = told("time over time", last.median_s / first.median_s, "ratio", *behind)
        due = bus_bytes("all-reduce", 1, last.point.case.n_ranks) / bus_bytes(
            "all-reduce", 1, first.point.case.n_ranks
        )
        yield from told.end(
            f"The largest all-reduce takes {times} the time between {last.name} as between {first.name}; a "
            f"ring on links of one rate takes {told('of a ring', due, 'ratio', *behind)}."
        )


NAMED = (
    text("ranks", lambda row: row.name),
    STATUS,
    REASON,
)
COLLECTIVE = text("collective", lambda line: line[1].collective)
SIZE = Value("size", "bytes", lambda line: line[1].n_bytes)
RATE = Value("bus rate", "bytes_per_s", lambda line: line[1].bus_bytes_per_s)
STUDY = Study(
    title="How fast do ranks exchange tensors, by collective, size and number of ranks?",
    points=points,
    tables=(
        table("Jobs", NAMED),
        table(
            "Collectives by size",
            (
                *of_row(NAMED[0]),
                COLLECTIVE,
                SIZE,
                Value("time", "s", lambda line: line[1].time_s),
                RATE,
                Value("time over the model's", "ratio", over_fit),
            ),
            lines,
            note="The bus rate is that of nccl-tests: bytes that a rank sends at least, over the time.",
        ),
        table(
            "Fitted: latency + bytes on the bus / rate",
            (
                *of_row(NAMED[0]),
                COLLECTIVE,
                Value("latency", "s", lambda pair: pair[1].latency_s),
                Value("rate", "bytes_per_s", lambda pair: pair[1].bus_bytes_per_s),
                Value("largest error", "share", lambda pair: pair[1].worst_error),
            ),
            fits,
        ),
    ),
    plots=(
        plot(
            lambda line: f"Bus rate between {line[0].name}",
            SIZE,
            RATE,
            lambda line: line[1].collective,
            lines,
            each=lambda line: line[0].name,
            log="xy",
        ),
    ),
    claims=(rates, against_reduce, more_ranks),
    notes=lambda view: (
        "gloo runs between processes that share this machine's processor, NCCL between its GPUs.",
        *(f"Not run: {row.name} {row.point.absent}." for row in view.rows if row.point.absent),
    ),
)
