"""Layouts of one training step: what is read off their measurements, and what is said of them.

Shared by the study `parallel` and by `peakward run --gpus`.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from math import sqrt
from typing import Any

from peakward.hardware import devices
from peakward.prediction.parallel.layouts import layout_forecast
from peakward.prediction.planning.site import site
from peakward.records.case import ConfiguredCase, DeviceType, LayoutCase, ModelCase, Precision
from peakward.records.errors import PeakwardError
from peakward.records.layout import CAPTURABLE, Layout, expect_shared
from peakward.records.layouts import LayoutForecast, RankMemory
from peakward.records.measurement import Environment, Interval, Protocol
from peakward.records.parallel import RankUse
from peakward.records.study import Conclusion, Table
from peakward.report.cases import layout as named
from peakward.studies import late_ranks, values
from peakward.studies.claims import Sentence, compared, fastest
from peakward.studies.engine import Point, Row, View
from peakward.studies.values import REASON, STATUS, TIME, Value, label, spread, table, text

PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16-mixed", "bf16")
"""Those that the step of several ranks knows."""
Shared = Point[LayoutCase]
ShRow = Row[Shared]


def points_of(
    case: ConfiguredCase, layouts: Iterable[Layout], protocol: Protocol, absent: str | None = None
) -> Iterator[Shared]:
    """A point for each layout, held against the plain step of one rank, which comes first."""
    base = _shared(case, Layout())
    yield Point(case=base, protocol=protocol, name="one rank", base=None)
    for each in layouts:
        try:
            _expect_shared(each, case)
            refusal = absent
        except PeakwardError as error:
            refusal = str(error)
        yield Point(
            case=_shared(case, each),
            protocol=protocol,
            name=named(each),
            base=(base, protocol),
            absent=refusal,
        )


def _shared(case: ConfiguredCase, layout: Layout) -> LayoutCase:
    own = {name: getattr(case, name) for name in case.__struct_fields__}
    return LayoutCase(**own, layout=layout)


def _expect_shared(layout: Layout, case: ConfiguredCase) -> None:
    if isinstance(case, ModelCase):
        expect_shared(layout, case.model, case.workload.batch_size)
        if layout.pp > 1 and case.configuration.loss != "torch":
            raise PeakwardError(
                f"expected torch's loss at the end of a pipeline, got {case.configuration.loss}: it has no "
                "other"
            )
    elif layout.tp > 1 or layout.pp > 1:
        raise PeakwardError(
            f"expected the reference decoder for tensor or pipeline parallelism, got {case.name}: its "
            "parts have no rule how to be split"
        )


def candidates(n: int, batch_size: int, device: DeviceType) -> tuple[Layout, ...]:
    """The layouts that a search over `n` ranks tries: each strategy of torch's engine alone, on GPUs some
    also as one CUDA graph, and products of two where there are four ranks and more."""
    micro = 2 * n if batch_size % 2 == 0 else n
    found = [
        Layout(dp=n),
        Layout(dp=n, data="overlapped"),
        Layout(dp=n, data="zero1"),
        Layout(dp=n, data="zero2"),
        Layout(dp=n, data="fsdp"),
        *(
            [Layout(dp=n, data=each, captured=True) for each in CAPTURABLE]
            if device == "cuda"
            else []
        ),
        Layout(tp=n),
        Layout(pp=n, n_micro_batches=micro),
    ]
    for inner in (2, 4):
        if n > inner and n % inner == 0:
            outer, micros = n // inner, 2 * inner if batch_size % 2 == 0 else inner
            found.append(Layout(dp=outer, data="fsdp", tp=inner))
            found.append(Layout(dp=outer, pp=inner, n_micro_batches=micros))
            found.append(Layout(dp=outer, data="fsdp", pp=inner, n_micro_batches=micros))
    return tuple(found)


# What is read off a row.


def layout(row: ShRow) -> Layout:
    """The row's."""
    return row.point.case.layout


def uses(row: ShRow) -> tuple[RankUse, ...]:
    """By rank; none unless the case ended `ok`."""
    made = row.measurement
    return () if made is None or made.ranks is None else made.ranks.ranks


def held_bytes(row: ShRow) -> int | None:
    """Parameters, gradients and optimiser state on the rank that holds most."""
    return max((sum(each.held_bytes.values()) for each in uses(row)), default=None)


def held(kind: str) -> Value:
    """One kind of them, on the rank that holds most of it."""
    return Value(
        kind.replace("_", " "),
        "bytes",
        lambda row: max((each.held_bytes.get(kind, 0) for each in uses(row)), default=None),
    )


def largest(field: str) -> Value:
    """Allocated memory on the rank with the most of it; None on a CPU."""
    names = {"built_bytes": "built", "between_bytes": "between steps", "peak_bytes": "peak"}

    def most(row: ShRow) -> int | None:
        known = [getattr(each, field) for each in uses(row)]
        return None if not known or None in known else max(known)

    return Value(names[field], "bytes", most)


def sent(row: ShRow) -> str | None:
    """The bytes that the rank which sends most sends in a step, by collective: "all-reduce 32.0 MB (4)"."""
    if not any(each.sent for each in uses(row)):
        return None
    most = max(uses(row), key=lambda each: sum(one.n_bytes for one in each.sent))
    return ", ".join(
        f"{one.collective} {one.n_bytes / 1e6:.3g} MB ({one.n_calls})" for one in most.sent
    )


def sent_bytes(row: ShRow) -> int | None:
    """The bytes of all collectives on the rank that sends most; None of one rank."""
    return max((sum(one.n_bytes for one in each.sent) for each in uses(row)), default=None) or None


def hidden(row: ShRow) -> float | None:
    """The share of the time of collectives in which other kernels ran, on the rank where it is least."""
    shares = [
        1 - each.exposed_s / each.communication_s
        for each in uses(row)
        if each.exposed_s is not None and each.communication_s
    ]
    return min(shares, default=None)


def efficiency(row: ShRow) -> Interval | None:
    """The time of one rank's plain step over the layout's: every rank brings as much work."""
    return row.speed


def bubble(row: ShRow) -> float | None:
    """The share of a pipeline's time in which a rank has nothing to do, by its schedule alone: (p - 1) of
    (v·m + p - 1) parts (Narayanan et al. 2021, section 2.2)."""
    own = layout(row)
    if own.pp == 1:
        return None
    idle = own.pp - 1
    return idle / (own.stages_per_rank * own.n_micro_batches + idle)


def predicted(row: ShRow, environment: Environment) -> LayoutForecast | None:
    """The step by the datasheet; None where no prediction covers it."""
    known = devices.match(environment.device_name, environment.device_memory_bytes)
    if known is None or row.point.case.device != "cuda":
        return None
    return _predicted(row.point.case, known.key)


@cache
def _predicted(case: LayoutCase, device: str) -> LayoutForecast | None:
    alone = case.of_one_rank
    if not isinstance(alone, ModelCase):
        return None
    try:
        return layout_forecast(alone, site(devices.device(device)), case.layout)
    except PeakwardError:
        return None


# What is said.


def by_ranks(view: View[Shared]) -> tuple[tuple[ShRow, ...], ...]:
    """The rows of as many ranks together, those of one left out."""
    several = [row for row in view.rows if layout(row).n_ranks > 1]
    return values.groups(several, lambda row: layout(row).n_ranks)


def choice(view: View[Shared]) -> Iterator[Conclusion]:
    """The fastest layout of each number of ranks against `ddp`, or against the first that ran; and what takes
    less memory for more time."""
    for group in by_ranks(view):
        ran = [row for row in group if row.time is not None]
        if not ran:
            continue
        base = next(
            (row for row in ran if layout(row).data == "ddp" and layout(row).dp > 1), ran[0]
        )
        where = f"On {layout(base).n_ranks} ranks"
        yield from fastest(where, group, base)
        yield from _scaling(where, ran)
        yield from _front(where, ran)


def _scaling(where: str, ran: list[ShRow]) -> Iterator[Conclusion]:
    known = [(found, row) for row in ran if (found := efficiency(row)) is not None]
    if not known:
        return
    best, row = max(known, key=lambda each: each[0].estimate)
    told = Sentence()
    share = told("efficiency", best.estimate, "share", *row.both)
    low = told("least efficiency", best.low, "share", *row.both)
    high = told("most efficiency", best.high, "share", *row.both)
    more = ""
    if (least := hidden(row)) is not None:
        more = (
            f", with {told('hidden', least, 'share', row.measurement)} of its communication hidden"
        )
    if best.low > 1:
        more += (
            "; more than 100% is no gain of sharing: something slowed the plain step, or ranks have faster "
            "kernels than it"
        )
    yield from told.end(
        f"{where}, {row.name} scales best: one rank's plain step over its step is {share} "
        f"({low} to {high}){more}."
    )


def _front(where: str, ran: list[ShRow]) -> Iterator[Conclusion]:
    """The layouts that no other beats in both time and memory, fastest first."""
    peak = largest("peak_bytes").number
    known = [
        (row.median_s, memory, row)
        for row in ran
        if (memory := peak(row) or held_bytes(row)) is not None and row.median_s is not None
    ]
    kept: list[tuple[float, float, ShRow]] = []
    for each in sorted(known, key=lambda each: (each[0], each[1])):
        if not kept or each[1] < kept[-1][1]:
            kept.append(each)
    if len(kept) < 2:
        return
    told = Sentence()
    what = "peak" if peak(kept[0][2]) is not None else "held between steps"
    listed = ", ".join(
        f"{row.name} ({told(f'time, {row.name}', time_s, 's', row.measurement)}, "
        f"{told(f'memory, {row.name}', memory, 'bytes', row.measurement)})"
        for time_s, memory, row in kept
    )
    yield from told.end(
        f"{where}, take the first of these whose memory on a rank ({what}) fits: {listed}."
    )


def naive(view: View[Shared]) -> Iterator[Conclusion]:
    """Tells what reducing gradients after the backward pass costs against torch's DistributedDataParallel,
    and what looking for unused parameters and gathering the whole model at once cost."""
    for group in by_ranks(view):
        by_layout = {layout(row): row for row in group}
        n = layout(group[0]).n_ranks
        pairs = (
            (Layout(dp=n, data="per-parameter"), Layout(dp=n)),
            (Layout(dp=n, data="flat"), Layout(dp=n)),
            (Layout(dp=n, find_unused=True), Layout(dp=n)),
            (Layout(dp=n, data="fsdp", wrap="whole"), Layout(dp=n, data="fsdp")),
        )
        for slow, fast in pairs:
            yield from compared(f"On {n} ranks", by_layout.get(slow), by_layout.get(fast))


def best_bucket_mb(n_bytes: float, latency_s: float, bytes_per_s: float) -> float:
    """The bucket size in MiB with the least overhead of sending `n_bytes` of gradients behind a backward
    pass: each of n/b buckets costs a latency, and the last has nothing to hide behind, so that
    n/b·latency + b/rate is least at b = √(n·latency·rate)."""
    return sqrt(n_bytes * latency_s * bytes_per_s) / 2**20


# Columns.

STRATEGY = label("layout", lambda row: row.name)
RANKS = Value("ranks", "count", lambda row: layout(row).n_ranks)
EFFICIENCY = spread("efficiency", efficiency, "ratio")
HELD = (held("parameters"), held("gradients"), held("optimizer_state"))
MEMORY = (largest("built_bytes"), largest("between_bytes"), largest("peak_bytes"))
SENT = text("sent in a step by one rank (calls)", sent)
HIDDEN = Value("hidden", "share", hidden)
BUBBLE = Value("bubble of the schedule", "share", bubble)


def tables() -> tuple[Callable[[View[Any]], Iterable[Table]], ...]:
    """Times, memory and communication of all rows."""

    def covered(view: View[Shared]) -> Iterable[tuple[ShRow, LayoutForecast]]:
        pairs = ((row, predicted(row, view.setting.environment)) for row in view.rows)
        return [(row, said) for row, said in pairs if said is not None]

    def error(pair: tuple[ShRow, LayoutForecast]) -> float | None:
        done = pair[0].median_s
        return None if done is None else pair[1].step_s / done - 1

    return (
        table(
            "Layouts",
            (RANKS, STRATEGY, STATUS, TIME, EFFICIENCY, values.TOKENS_PER_S, BUBBLE, REASON),
            note="Each rank brings the batch of one. The efficiency is the time of one rank's plain step "
            "over the layout's step.",
        ),
        table(
            "Memory of the rank that has most",
            (RANKS, STRATEGY, *HELD, *MEMORY),
            lambda view: [row for row in view.rows if uses(row)],
            note="Parameters, gradients and optimiser state are counted between steps; the rest is what "
            "torch's allocator gave out, on a GPU.",
        ),
        table(
            "Communication",
            (RANKS, STRATEGY, SENT, HIDDEN),
            lambda view: [row for row in view.rows if sent_bytes(row)],
            note="Bytes are those of whole tensors, as in nccl-tests. Hidden is the share of the time of "
            "NCCL's kernels in which others ran, in profiled steps.",
        ),
        table(
            "Own work of the ranks",
            (RANKS, STRATEGY, *late_ranks.COLUMNS),
            lambda view: [row for row in view.rows if late_ranks.longest(row)],
            note="The time of a step that a rank does not wait in collectives, in profiled steps, which are "
            "slower than others: the rank with most beside the median of those with the same work.",
        ),
        table(
            "Predicted beside measured",
            (
                *values.of_row(RANKS, STRATEGY),
                Value("predicted", "s", lambda pair: pair[1].step_s),
                *values.of_row(TIME),
                Value("error", "share", error),
                Value("predicted peak", "bytes", lambda pair: _allocated_bytes(pair[1].memory)),
                *values.of_row(largest("peak_bytes")),
            ),
            covered,
        ),
    )


def _allocated_bytes(memory: RankMemory) -> int:
    """The bytes that torch's allocator gives out: all but the CUDA context."""
    return memory.total_bytes - memory.context_bytes


def notes(view: View[Shared]) -> Iterator[str]:
    """Conventions, and what could not run."""
    if not view.on_gpu:
        yield "The ranks are processes over gloo that share this machine's cores: times tell of them alone."
        yield "Peak memory and the hidden share of communication are not computed on a CPU."
    yield from late_ranks.notes(view)
    unused = max((each.n_unused for row in view.rows for each in uses(row)), default=0)
    if unused:
        yield (
            f"The loss does not depend on {unused} trained parameters: ddp and zero1 look for them in each "
            "step (find_unused_parameters), without which torch ends with an error. Freeze them "
            "(`requires_grad_(False)`) to do without."
        )
    absent = {row.point.absent: row.name for row in view.rows if row.point.absent}
    yield from (f"Not run: {name}: {reason}." for reason, name in absent.items())
