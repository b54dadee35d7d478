"""Study `collectives`: rates and latencies by size and number of ranks, with the fitted model."""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from peakward.records.case import CollectivesCase, DeviceType
from peakward.records.measurement import Measurement
from peakward.records.parallel import CollectiveTime, LinkFit
from peakward.records.study import Conclusion
from peakward.stats.link_fit import bus_bytes, fitted
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
Job = Point[CollectivesCase]
JobRow = Row[Job]
Line = tuple[JobRow, CollectiveTime]


def points(setting: Setting) -> Iterator[Job]:
    """NCCL where there are GPUs, and gloo, between each number of ranks at each size."""
    name, protocol = setting.scope.name, setting.protocol(phases=False)
    devices: tuple[DeviceType, ...] = ("cuda", "cpu") if setting.device == "cuda" else ("cpu",)
    for device, n, size in product(devices, RANKS[name], SIZES[name]):
        yield Point(
            case=CollectivesCase(n_ranks=n, sizes_bytes=(size,), device=device),
            protocol=protocol,
            name=f"{n} ranks over {BACKENDS[device]}",
            absent=setting.absent_ranks(n, device),
        )


class Group(NamedTuple):
    """The jobs of as many ranks over one backend, and the model of each collective over their sizes."""

    rows: tuple[JobRow, ...]
    times: tuple[CollectiveTime, ...]
    fits: tuple[LinkFit, ...]

    @property
    def name(self) -> str:
        """For a sentence: "2 ranks over NCCL"."""
        return self.rows[0].name

    @property
    def n_ranks(self) -> int:
        """The ranks of each job."""
        return self.rows[0].point.case.n_ranks

    @property
    def sources(self) -> tuple[Measurement | None, ...]:
        """The jobs' measurements."""
        return tuple(row.measurement for row in self.rows)


def times_of(row: JobRow) -> tuple[CollectiveTime, ...]:
    """None unless the job ended `ok`."""
    made = None if row.measurement is None else row.measurement.collectives
    return () if made is None else made.times


def groups(view: View[Job]) -> Iterator[Group]:
    """Those with times; a model needs two sizes."""
    timed = [row for row in view.rows if times_of(row)]
    for rows in values.groups(timed, lambda row: row.name):
        times = tuple(each for row in rows for each in times_of(row))
        by_kind = values.groups(times, lambda each: each.collective)
        n_ranks = rows[0].point.case.n_ranks
        fits = tuple(fitted(kind, n_ranks) for kind in by_kind if len(kind) > 1)
        yield Group(rows=rows, times=times, fits=fits)


def lines(view: View[Job]) -> Iterator[Line]:
    """Each collective of each size, with its row."""
    for row in view.rows:
        for each in times_of(row):
            yield row, each


def fit_lines(view: View[Job]) -> Iterator[tuple[JobRow, LinkFit]]:
    """Each collective's model, with the first row of its group."""
    for group in groups(view):
        for each in group.fits:
            yield group.rows[0], each


def rates(view: View[Job]) -> Iterator[Conclusion]:
    """Each group's all-reduce: its rate at the largest size, its latency and rate by the model, and the size
    from which on it reaches half of that rate."""
    for group in groups(view):
        fit = next((each for each in group.fits if each.collective == "all-reduce"), None)
        if fit is None:
            continue
        of_kind = [each for each in group.times if each.collective == fit.collective]
        last = max(of_kind, key=lambda each: each.n_bytes)
        half = fit.latency_s * fit.bus_bytes_per_s / bus_bytes(fit.collective, 1.0, group.n_ranks)
        told, behind = Sentence(), group.sources
        yield from told.end(
            f"{group.name}: an all-reduce of {told('size', last.n_bytes, 'bytes', *behind)} moves "
            f"{told('bus rate', last.bus_bytes_per_s, 'bytes_per_s', *behind)} a rank. The model is "
            f"{told('latency', fit.latency_s, 's', *behind)} and "
            f"{told('fitted rate', fit.bus_bytes_per_s, 'bytes_per_s', *behind)}, at most "
            f"{told('largest error', fit.worst_error, 'share', *behind)} off; by it, half of that rate is "
            f"reached at {told('half rate at', half, 'bytes', *behind)}."
        )


def against_reduce(view: View[Job]) -> Iterator[Conclusion]:
    """How the other collectives' rate at the largest size stands to the all-reduce's."""
    for group in groups(view):
        row = max(group.rows, key=lambda row: row.point.case.sizes_bytes)
        rate = {each.collective: each.bus_bytes_per_s for each in times_of(row)}
        told = Sentence()
        named = ", ".join(
            f"{name} {told(name, each / rate['all-reduce'], 'ratio', row.measurement)}"
            for name, each in rate.items()
            if name != "all-reduce"
        )
        size = told("size", row.point.case.sizes_bytes[0], "bytes", row.measurement)
        yield from told.end(f"{row.name}, {size}: over the bus rate of all-reduce, {named}.")


def more_ranks(view: View[Job]) -> Iterator[Conclusion]:
    """Tells what an all-reduce of the largest size takes between the most ranks, over the fewest."""
    timed = [row for row in view.rows if row.median_s is not None]
    for of_device in values.groups(timed, lambda row: row.point.case.device):
        largest = max(row.point.case.sizes_bytes for row in of_device)
        first, *_, last = [row for row in of_device if row.point.case.sizes_bytes == largest] * 2
        if first.name == last.name or first.median_s is None or last.median_s is None:
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
JOB_SIZE = Value("size", "bytes", lambda row: row.point.case.sizes_bytes[0])
COLLECTIVE = text("collective", lambda line: line[1].collective)
SIZE = Value("size", "bytes", lambda line: line[1].n_bytes)
RATE = Value("bus rate", "bytes_per_s", lambda line: line[1].bus_bytes_per_s)
STUDY = Study(
    title="How fast do ranks exchange tensors, by collective, size and number of ranks?",
    points=points,
    tables=(
        table("Jobs", (*NAMED[:1], JOB_SIZE, *NAMED[1:])),
        table(
            "Collectives by size",
            (
                *of_row(NAMED[0]),
                COLLECTIVE,
                SIZE,
                Value("time", "s", lambda line: line[1].time_s),
                RATE,
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
            fit_lines,
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
        *dict.fromkeys(
            f"Not run: {row.name} {row.point.absent}." for row in view.rows if row.point.absent
        ),
    ),
)
