"""Study `hierarchy`: how fast and how far each level of memory is, and what a move between them takes.

Its measurement is the full calibration of the device; it runs no case, and its rows are the same in
every scope.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from peakward.hardware import devices
from peakward.models.presets import model
from peakward.prediction.parameters import n_parameters
from peakward.prediction.time.device_model import N_TENSORS
from peakward.records.calibration import Rates, Subject, TrafficRate
from peakward.records.device import Device
from peakward.records.study import Conclusion
from peakward.studies import values
from peakward.studies.claims import Sentence, known, listed, most
from peakward.studies.engine import Study, View
from peakward.studies.hierarchy.levels import (
    MEMORY,
    Level,
    Route,
    fits_into,
    last_cache,
    read,
    routes,
)
from peakward.studies.readings import ratio
from peakward.studies.values import Value, given, label, plot, table, text

SUBJECTS: tuple[Subject, ...] = ("traffic", "levels", "latency", "link", "disk")
"""The subjects of the calibration that the study reads."""
KIB, MIB, GIB = 2**10, 2**20, 2**30
SLOWER = 2.0
"""Times the least latency of a level from which on a working set does not behave as if it lay there."""
Seen = View[Any]
Claim = Callable[[Seen], Iterator[Conclusion]]


class Tensor(NamedTuple):
    """Something to move."""

    name: str
    size_bytes: int


WEIGHTS = Tensor("weights of 2.7B, bf16", 2 * n_parameters(model("2.7B")))
TENSORS = (
    Tensor("1 KiB", KIB),
    Tensor("1 MiB", MIB),
    Tensor("64 MiB", 64 * MIB),
    Tensor("1 GiB", GIB),
    Tensor("residual activation of small, 4 × 512, fp32", 4 * 512 * model("small").d_model * 4),
    WEIGHTS,
)
"""Round sizes, then two of a model's own."""


class WorkingSet(NamedTuple):
    """The figures of a working set; None where one was not measured."""

    size_bytes: int
    level: str | None
    """The level that it lies in; None where a part may be found in a cache."""
    bytes_per_s: float | None
    load_s: float | None


class Pass(NamedTuple):
    """A pass over tensors of one size."""

    rate: TrafficRate
    footprint_bytes: int
    """All of its tensors."""
    level: str | None
    """The level that can hold them together."""


class Moved(NamedTuple):
    """The rate at which bytes are moved."""

    name: str
    size_bytes: int
    bytes_per_s: float


def rates(view: Seen) -> Rates:
    """The calibration's rates; none where there are none."""
    return (None if view.calibration is None else view.calibration.rates) or Rates()


def datasheet(view: Seen) -> Device | None:
    """The device's, where it is catalogued."""
    if view.calibration is None:
        return None
    where = view.calibration.environment
    return devices.match(where.device_name, where.device_memory_bytes)


def levels(view: Seen) -> tuple[Level, ...]:
    """The levels, links and disks that were measured."""
    return () if view.calibration is None else read(view.calibration, datasheet(view))


def ways(view: Seen) -> Iterator[Route]:
    """The ways between them."""
    return routes(levels(view), rates(view), view.setting.device)


def working_sets(view: Seen) -> Iterator[WorkingSet]:
    """Every working set, with the level that it lies in."""
    of = rates(view)
    loads = {each.working_set_bytes: each.load_s for each in of.latency}
    reads = {each.working_set_bytes: each.bytes_per_s for each in of.levels}
    level_of = {each.working_set_bytes: each.level for each in of.latency}
    level_of |= {each.working_set_bytes: each.level for each in of.levels}
    for size, level in sorted(level_of.items()):
        yield WorkingSet(size, level, reads.get(size), loads.get(size))


def passes(view: Seen) -> Iterator[Pass]:
    """Copies and additions by size."""
    of = rates(view)
    for each in sorted(of.traffic, key=lambda each: (each.operation, each.size_bytes)):
        footprint = N_TENSORS[each.operation] * each.size_bytes
        yield Pass(each, footprint, fits_into(of, footprint))


def moved(view: Seen) -> Iterator[Moved]:
    """Reads of working sets, copies and additions of tensors."""
    for level in rates(view).levels:
        yield Moved("read", level.working_set_bytes, level.bytes_per_s)
    for each in rates(view).traffic:
        yield Moved(each.operation, each.size_bytes, each.bytes_per_s)


def descent(view: Seen) -> Iterator[Conclusion]:
    """Rate and latency from the nearest level of memory to the furthest."""
    own, of, told = (
        [each for each in levels(view) if each.ends is None],
        view.calibration,
        Sentence(),
    )
    if len(own) < 2:
        return

    def figures(each: Level) -> str:
        rate = told(f"rate, {each.name}", each.bytes_per_s, "bytes_per_s", of)
        if each.latency_s is None:
            return f"{each.name} {rate}"
        return (
            f"{each.name} {rate} at {told(f'latency, {each.name}', each.latency_s, 's', of)} a load"
        )

    near, far = own[0], own[-1]
    said = ", ".join(map(figures, own))
    slower = told("rates, first over last", near.bytes_per_s / far.bytes_per_s, "ratio", of)
    said = f"Reading: {said}; {near.name} is {slower} as fast as {far.name}"
    if later := ratio(far.latency_s, near.latency_s):
        times = told("latencies, last over first", later, "ratio", of)
        said += f", whose loads take {times} the time"
    yield from told.end(f"{said}.")


def in_flight(view: Seen) -> Iterator[Conclusion]:
    """Bytes that must be on their way at once: rate times latency (Little's law)."""
    for each in levels(view):
        if each.name == MEMORY and each.latency_s is not None:
            n_bytes = given(
                "bytes on their way at once", "bytes", each.bytes_per_s * each.latency_s
            )
            yield from listed("To read memory", (RATE, LATENCY, n_bytes), each, view.calibration)


def reach(view: Seen) -> Iterator[Conclusion]:
    """The working set of each cache from which on loads take far longer, though it should hold it."""
    capacity = {each.level: each.capacity_bytes for each in rates(view).levels}
    loads = (each for each in rates(view).latency if each.level is not None)
    for own in values.groups(loads, lambda each: each.level):
        quick = min(own, key=lambda each: each.load_s)
        late = [each for each in own if each.load_s >= SLOWER * quick.load_s]
        if late:
            slow = min(late, key=lambda each: each.working_set_bytes)
            figures = (
                given("said to hold", "bytes", capacity.get(own[0].level)),
                given("slow working set", "bytes", slow.working_set_bytes),
                given("its loads over the quickest", "ratio", slow.load_s / quick.load_s),
                given("quick working set", "bytes", quick.working_set_bytes),
                given("its loads", "s", quick.load_s),
            )
            subject = f"{own[0].level} slows down before it is full"
            yield from listed(subject, figures, slow, view.calibration)


def copies(view: Seen) -> Iterator[Conclusion]:
    """The rate of copies that reach memory and the size from which on half of it is reached; then the
    highest rate of a copy, where the last cache could hold its tensors."""
    made = [each for each in passes(view) if each.rate.operation == "copy"]
    in_memory = [each.rate for each in made if each.level == MEMORY]
    if len(made) < 2 or not in_memory:
        return
    _, full = most(known(in_memory, lambda each: each.bytes_per_s))
    _, best = most(known(made, lambda each: each.rate.bytes_per_s))
    smallest = made[0].rate
    half = next(each.rate for each in made if 2 * each.rate.bytes_per_s >= full.bytes_per_s)
    figures = (
        given("best rate", "bytes_per_s", full.bytes_per_s),
        given("at tensors of", "bytes", full.size_bytes),
        given("the smallest tensors of half of it or more", "bytes", half.size_bytes),
        given("the smallest tensors", "bytes", smallest.size_bytes),
        given("their share of it", "share", smallest.bytes_per_s / full.bytes_per_s),
    )
    yield from listed("Copies out of memory and back", figures, full, view.calibration)
    if best.level != MEMORY:
        cache = last_cache(rates(view))
        holds = cache is not None and best.level == cache[0]
        why = f"{best.level} can hold" if holds else "a cache may hold a part of"
        highest = (
            given("rate", "bytes_per_s", best.rate.bytes_per_s),
            given("each tensor", "bytes", best.rate.size_bytes),
            given("both tensors", "bytes", best.footprint_bytes),
            given(f"capacity of {best.level}", "bytes", cache[1] if cache and holds else None),
        )
        subject = f"The quickest copy is not memory's, as {why} its tensors"
        yield from listed(subject, highest, best, view.calibration)


def weights(view: Seen) -> Iterator[Conclusion]:
    """The quickest and the slowest way of a model's weights, and all between."""
    timed = known(ways(view), lambda route: route.time_s(WEIGHTS.size_bytes))
    if len(timed) < 2:
        return
    timed.sort(key=lambda each: each[0])
    figures = (
        given("in all", "bytes", WEIGHTS.size_bytes),
        *(given(route.name, "s", time_s) for time_s, route in timed),
        given("slowest over quickest", "ratio", timed[-1][0] / timed[0][0]),
    )
    subject = WEIGHTS.name[0].upper() + WEIGHTS.name[1:]
    yield from listed(subject, figures, WEIGHTS, view.calibration)


def against_datasheet(view: Seen) -> Iterator[Conclusion]:
    """The share of the datasheet's figure, of every level that has one."""
    of, device, told = view.calibration, datasheet(view), Sentence()
    named = [
        f"{each.name} {told(f'share, {each.name}', each.share, 'share', of, device)} of "
        + told(f"datasheet, {each.name}", each.stated_bytes_per_s, "bytes_per_s", device)
        for each in levels(view)
        if each.share is not None
    ]
    if named:
        yield from told.end(f"Of the datasheet: {', '.join(named)}.")


def marked(claim: Claim, *subjects: Subject) -> Claim:
    """The claim, whose sentences say so where they rest on subjects measured while something else ran."""

    def made(view: Seen) -> Iterator[Conclusion]:
        doubted = [_subject(each) for each in rates(view).doubts]
        doubtful = ", ".join(each for each in subjects if each in doubted)
        behind = f" (Measured beside other work: {doubtful}; see the notes.)" if doubtful else ""
        for each in claim(view):
            yield msgspec.structs.replace(each, text=each.text + behind)

    return made


def _subject(doubt: str) -> str:
    return doubt.partition(":")[0]


def notes(view: Seen) -> Iterator[str]:
    """Conventions, and what of the study's subjects is absent or doubtful."""
    of = view.calibration
    if of is None or of.rates is None:
        return
    yield (
        f"Measured by the calibration of {of.started_at}; `peakward devices calibrate` measures it "
        "again."
    )
    yield (
        "What a cache holds is what the machine says of one; a virtual machine may share it with "
        "others. Beyond the reach of the TLB, walking the page table is part of a load."
    )
    yield (
        "A copy's rate counts bytes read and written, a read's the bytes read. Each belongs to the level "
        "that holds what is read and written, which the tables name."
    )
    yield (
        "Files are read block by block into one buffer of 8 MiB, which a cache may hold: to new memory "
        "it may take longer."
    )
    nearest = "registers"
    if of.environment.device_type == "cuda":
        nearest = "registers, shared memory and L1 (the nearest level here is L2)"
    yield f"Not measured: {nearest}, writes to a cache, and writes to a disk."
    if datasheet(view) is None:
        yield "This device is not in the catalogue: there is no datasheet to stand beside its figures."
    for each in of.rates.absent:
        if each.subject in SUBJECTS:
            figure = "" if each.figure is None else f", {each.figure}"
            yield f"Not measured: {each.subject}{figure}: {each.reason}."
    for doubt in of.rates.doubts:
        if _subject(doubt) in SUBJECTS:
            yield f"{doubt[:1].upper()}{doubt[1:]}: its figures may be too slow."


def move(tensor: Tensor) -> Value:
    """The time of a tensor on a way."""
    return Value(tensor.name, "s", lambda route: route.time_s(tensor.size_bytes))


RATE = Value("rate", "bytes_per_s", lambda row: row.bytes_per_s)
LATENCY = Value("latency", "s", lambda row: row.latency_s)
STUDY: Study[Any] = Study(
    title="How fast and how far is each level of memory?",
    needs_rates=lambda _setting: SUBJECTS,
    tables=(
        table(
            "Levels",
            (
                label("level", lambda row: row.name),
                Value("holds", "bytes", lambda row: row.capacity_bytes),
                RATE,
                LATENCY,
                Value("datasheet", "bytes_per_s", lambda row: row.stated_bytes_per_s),
                Value("share", "share", lambda row: row.share),
            ),
            levels,
            note="Of a level: what is read, by all cores together, and a load that waits for the one "
            "before it; the best of the working sets that lie in it. Of a link or a disk: a large copy "
            "or block, and the time of a single page.",
        ),
        table(
            "Time to move a tensor",
            (label("from → to", lambda row: row.name), *map(move, TENSORS)),
            ways,
            note="Computed: the latency, then the bytes at the rate; within memory, as measured copies of "
            "that size, which a cache serves as far as it holds both tensors. A dash: the place cannot hold "
            "the tensor, or a part of the time is not known.",
        ),
        table(
            "By working set",
            (
                Value("working set", "bytes", lambda row: row.size_bytes),
                text("level", lambda row: row.level),
                Value("read", "bytes_per_s", lambda row: row.bytes_per_s),
                Value("a load", "s", lambda row: row.load_s),
            ),
            working_sets,
            note="Of a set without a level, a part may be found in a cache: its rate is of neither alone.",
        ),
        table(
            "Copies and additions by size",
            (
                text("operation", lambda row: row.rate.operation),
                Value("each tensor", "bytes", lambda row: row.rate.size_bytes),
                Value("all tensors", "bytes", lambda row: row.footprint_bytes),
                text("fit into", lambda row: row.level),
                Value("rate", "bytes_per_s", lambda row: row.rate.bytes_per_s),
            ),
            passes,
            note="The level that can hold all tensors of the pass, the last cache or memory. A dash: they "
            "are more than the last cache holds, but a good part of them may be found in it.",
        ),
    ),
    plots=(
        plot(
            "Bandwidth by size",
            Value("working set, or each tensor", "bytes", lambda row: row.size_bytes),
            Value("bytes a second", "bytes_per_s", lambda row: row.bytes_per_s),
            lambda row: row.name,
            moved,
            log="xy",
        ),
        plot(
            "Latency by working set",
            Value("working set", "bytes", lambda row: row.working_set_bytes),
            Value("a load", "s", lambda row: row.load_s),
            lambda _row: "load",
            lambda view: rates(view).latency,
            log="xy",
        ),
    ),
    claims=(
        marked(descent, "levels", "latency"),
        marked(in_flight, "levels", "latency"),
        marked(reach, "latency"),
        marked(copies, "traffic"),
        marked(weights, *SUBJECTS),
        marked(against_datasheet, "levels", "link"),
    ),
    notes=notes,
)
