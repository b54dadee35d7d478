"""Study `memory`: what a step's memory is held for, phase by phase, and how that grows.

Every case runs two steps for its peak as torch counts it, then two more with every allocation recorded, which
tells what the peak of each phase was made of, and on a GPU what its kernels were at.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, Final

from peakward.records.case import ModelCase, Pass, Precision
from peakward.records.measurement import Measurement, Phase
from peakward.records.memory import CaseMemory, PhasePeak
from peakward.records.study import Cell, Column, Conclusion, Plot, Series, Table
from peakward.records.study import Point as Mark
from peakward.report.run.memory import (
    PEAK_COLUMNS,
    PEAKS_NOTE,
    PEAKS_TITLE,
    QUEUE_COLUMNS,
    QUEUE_NOTE,
    QUEUE_TITLE,
    peak_rows,
    queue_rows,
)
from peakward.studies import cases, values
from peakward.studies.cases import model_case, with_levers
from peakward.studies.claims import extremes, listed
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.peaks import predicted_peak, prediction
from peakward.studies.power_law import exponent
from peakward.studies.readings import ratio
from peakward.studies.setting import Setting
from peakward.studies.values import Value, given, label, of_row, plot, table, text
from peakward.traces.memory.case_memory import PURPOSES, part

PASSES: tuple[Pass, ...] = ("forward", "train_step")
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16-mixed")
BETWEEN = {"small": 128, "corners": 512}
"""An exponent needs a third length."""
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")
SOFTMAX = "blocks.*.attention.softmax"
MOST_LARGE = 10
"""Largest allocations that are listed."""
LEVERS: Final[dict[str, dict[str, Any]]] = {
    "none": {},
    "sdpa": {"attention": "sdpa"},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "bf16": {"precision": "bf16"},
    "checkpointing every block": {"checkpointing": "every-block"},
    "checkpointing selective": {"checkpointing": "selective"},
    "fused optimizer": {"optimizer": "adamw-fused"},
    "sdpa, bf16, every block, fused": {
        "attention": "sdpa",
        "precision": "bf16",
        "checkpointing": "every-block",
        "optimizer": "adamw-fused",
    },
}

Case = Point[ModelCase]
CaseRow = Row[Case]


def points(setting: Setting) -> Iterator[Case]:
    """Size × precision × pass × sequence, with naive attention.

    A case runs two steps: the first makes gradients and moments, the second runs beside them.
    """
    grid, lengths = setting.grid, setting.grid.seq_lens
    if setting.scope.name in BETWEEN and not setting.scope.seq_lens:
        lengths = tuple(sorted({*lengths, BETWEEN[setting.scope.name]}))
    by = setting.protocol(warmup_steps=1, min_steps=1, max_steps=1, phases=False)
    for shape, precision, pass_, seq_len in product(
        grid.models, precisions(setting), PASSES, lengths
    ):
        case = model_case(
            shape, grid.batch_size, seq_len, pass_, setting.device, precision=precision
        )
        yield Point(case=case, protocol=by, also="memory")


def precisions(setting: Setting) -> tuple[Precision, ...]:
    """Those asked for, or of the study's own those that this device has."""
    if setting.scope.precisions:
        return setting.scope.precisions
    shape, seq_len = setting.grid.models[0], setting.grid.seq_lens[0]
    case = model_case(shape, 1, seq_len, "train_step", setting.device)
    return tuple(
        each for each in PRECISIONS if setting.obstacle(with_levers(case, precision=each)) is None
    )


def recorded(view: View[Case]) -> Iterator[tuple[CaseRow, CaseMemory]]:
    """The cases whose memory was recorded."""
    return ((row, row.memory) for row in view.rows if row.memory is not None)


def longest(view: View[Case]) -> list[tuple[CaseRow, CaseMemory]]:
    """The train step of the longest sequence of each size and precision that was recorded."""
    trained = [each for each in recorded(view) if each[0].point.case.workload.trains]
    return list(
        values.largest(
            trained, lambda each: model(each[0]), lambda each: each[0].point.case.workload.seq_len
        )
    )


def model(row: CaseRow) -> tuple[str, str]:
    """The name of its model, and its precision."""
    return row.point.case.model.name, row.point.case.configuration.precision


def place(row: CaseRow) -> str:
    """For a sentence: "tiny 2 × 128 train_step in fp32"."""
    return f"{cases.place(row.point.case)} in {row.point.case.configuration.precision}"


def peak(row: CaseRow) -> PhasePeak | None:
    """The highest moment of the recorded step."""
    phases = () if row.memory is None else row.memory.phases
    return max(phases, key=lambda each: each.allocated_bytes, default=None)


def peak_bytes(row: CaseRow) -> int | None:
    """Returns the bytes that are allocated at the highest moment of the recorded step."""
    return None if (found := peak(row)) is None else found.allocated_bytes


def activations_bytes(memory: CaseMemory) -> int:
    """All that one step keeps for its backward pass."""
    return sum(each.n_bytes for each in memory.modules)


def block_bytes(row: CaseRow) -> float | None:
    """Activations made in blocks, the mean of one."""
    if row.memory is None:
        return None
    inside = sum(each.n_bytes for each in row.memory.modules if each.module.startswith("blocks."))
    return inside / row.point.case.model.n_layers


def residual_bytes(row: CaseRow) -> int:
    """One activation of the residual stream, batch × seq_len × d_model: in the parameters' type, as autocast
    leaves sums alone."""
    case = row.point.case
    width = 2 if case.configuration.precision == "bf16" else 4
    return case.workload.batch_size * case.workload.seq_len * case.model.d_model * width


def block_over_residual(row: CaseRow) -> float | None:
    """Returns what a block keeps, over one activation of the residual stream."""
    return ratio(block_bytes(row), residual_bytes(row))


def kept_name(memory: CaseMemory) -> str:
    """Returns the name for its activations: a record from before casts of weights were told apart has them
    among the activations."""
    casts = memory.case.configuration.precision.endswith("-mixed")
    mixed_up = casts and "weight_casts" not in memory.purposes
    return "activations and casts of weights" if mixed_up else "activations"


def held_bytes(row: CaseRow) -> int | None:
    """The peak to hold a prediction against: on a GPU as measured, on a CPU as recorded.

    On a CPU the process is measured, and the phase of the predicted peak counts: a GPU's workspaces are
    there in every step but not before the first, and may put its peak into another phase.
    """
    if row.point.case.device == "cuda":
        return row.peak_bytes
    told = prediction(row.point.case)
    if row.memory is None or told is None:
        return None
    if told.phase == "build":
        return row.memory.peak_bytes
    return phase_bytes(row, told.phase)


def phase_bytes(row: CaseRow, phase: str) -> int | None:
    """The recorded peak of a phase."""
    phases = () if row.memory is None else row.memory.phases
    return next((each.allocated_bytes for each in phases if each.phase == phase), None)


def in_phase(phase: Phase) -> Value:
    """The recorded peak of a phase."""
    return Value(phase, "bytes", lambda row: phase_bytes(row, phase))


def predicted_bytes(row: CaseRow) -> int | None:
    """The predicted peak; see `predicted_peak`."""
    return predicted_peak(row.point.case)


OVER_HELD = Value(
    "predicted over held", "share", lambda row: ratio(predicted_bytes(row), held_bytes(row))
)


def source(row: CaseRow) -> Measurement | CaseMemory | None:
    """Returns the record that says how much was held: the measurement on a GPU, the recorded memory on a
    CPU."""
    return row.measurement if row.point.case.device == "cuda" else row.memory


def purposes(view: View[Case]) -> Iterator[Table]:
    """Yields a table of what the recorded step's peak is made of, by the categories that occur."""
    held = [(row, found) for row, _ in recorded(view) if (found := peak(row)) is not None]
    names = {each.name for _, found in held for each in found.purposes}
    return table(
        "What is held at the peak of a step",
        (
            *of_row(*CASE),
            text("peak in", lambda line: line[1].phase),
            *(held_for(name) for name in PURPOSES if name in names),
        ),
        lambda _: held,
    )(view)


def held_for(purpose: str) -> Value:
    """Returns the value that reads what a peak holds for a purpose; its lines are pairs of a row and its
    peak."""
    return Value(
        purpose.replace("_", " "),
        "bytes",
        lambda line: next(
            (each.n_bytes for each in line[1].purposes if each.name == purpose), None
        ),
    )


def modules(view: View[Case]) -> Iterator[tuple[CaseRow, str, int, int]]:
    """Number and bytes of activations by what is alike in all blocks, the greatest first."""
    for row, memory in longest(view):
        found: dict[str, tuple[int, int]] = {}
        for each in memory.modules:
            n, n_bytes = found.get(part(each.module), (0, 0))
            found[part(each.module)] = (n + each.n, n_bytes + each.n_bytes)
        for name, (n, n_bytes) in sorted(found.items(), key=lambda item: -item[1][1]):
            yield row, name or "outside of modules", n, n_bytes


def clock(
    title: str,
    columns: Sequence[Column],
    rows: Callable[[CaseMemory], Sequence[Sequence[Cell]]],
    note: str,
) -> Callable[[View[Case]], Iterator[Table]]:
    """A table of the recorded steps on the clock of their kernels."""

    def at(place: int, column: Column) -> Value:
        return Value(column.name, column.unit, lambda line: line[1][place])

    return table(
        title,
        (*of_row(*CASE), *(at(place, column) for place, column in enumerate(columns))),
        lambda view: ((row, each) for row, memory in longest(view) for each in rows(memory)),
        note=note,
    )


def levers(view: View[Case]) -> Iterator[tuple[CaseRow, str, int | None]]:
    """The predicted peak of each train step under each lever that changes it."""
    for row, _ in longest(view):
        for name, settings in LEVERS.items():
            changed = with_levers(row.point.case, **settings)
            if name == "none" or changed != row.point.case:
                yield row, name, predicted_peak(changed)


def timelines(view: View[Case]) -> Iterator[Plot]:
    """A line for each category that ever holds anything, and their sum: against time and beside the phases of
    the kernels where the step was joined to them."""
    for row, memory in longest(view):
        if memory.timeline:
            clock = memory.clock
            yield Plot(
                title=f"{place(row)}: what is held over a step",
                kind="lines",
                x_label="allocations and frees since the step began"
                if clock is None
                else "time since the step began",
                y_label="allocated"
                if clock is None
                else "allocated; at 0 when kernels of each phase ran",
                x_unit="count" if clock is None else "s",
                y_unit="bytes",
                series=tuple(lines(memory)),
            )


def lines(memory: CaseMemory) -> Iterator[Series]:
    """The series of a timeline."""
    points, clock = memory.timeline, memory.clock
    at = [each.event for each in points] if clock is None else clock.times_s
    held: dict[str, list[int]] = {"all": [sum(each.n_bytes) for each in points]}
    for place, purpose in enumerate(memory.purposes):
        n_bytes = [each.n_bytes[place] for each in points]
        if any(n_bytes):
            held[purpose.replace("_", " ")] = n_bytes
    for name, n_bytes in held.items():
        yield Series(
            name=name, points=tuple(Mark(x=x, y=y) for x, y in zip(at, n_bytes, strict=True))
        )
    for each in () if clock is None else clock.kernels:
        ran = (Mark(x=each.begin_s, y=0), Mark(x=each.end_s, y=0))
        yield Series(name=f"kernels of {each.phase}", points=ran)


def shares(view: View[Case]) -> Iterator[Conclusion]:
    """Says what the peak of each longest step is made of."""
    for row, memory in longest(view):
        if (found := peak(row)) is not None:
            names = [
                kept_name(memory) if each.name == "activations" else each.name.replace("_", " ")
                for each in found.purposes
            ]
            figures = (
                given("in all", "bytes", found.allocated_bytes),
                *(
                    given(name, "share", ratio(each.n_bytes, found.allocated_bytes))
                    for name, each in zip(names, found.purposes, strict=True)
                ),
            )
            most = f"{place(row)} holds most in the phase {found.phase}"
            yield from listed(most, figures, row, memory)


def growth(view: View[Case]) -> Iterator[Conclusion]:
    """The exponents in the sequence length of what a train step keeps, by size and precision."""
    keeping = [each for each in recorded(view) if activations_bytes(each[1])]
    for group in values.groups(keeping, lambda each: model(each[0])):
        lengths = [row.case.workload.seq_len for row, _ in group]
        memories = [memory for _, memory in group]
        kept, softmax = (
            [read(memory) for memory in memories] for read in (activations_bytes, softmax_bytes)
        )
        if (power := exponent(lengths, kept)) is None:
            continue
        ends = (("shortest", 0), ("longest", -1)) if all(softmax) else ()
        figures = (
            given("exponent of all", "count", power),
            given("of the softmax's", "count", exponent(lengths, softmax) if ends else None),
            *(
                given(f"softmax's share at the {which}", "share", ratio(softmax[at], kept[at]))
                for which, at in ends
            ),
        )
        yield from listed(
            f"From {min(lengths)} to {max(lengths)} tokens the {kept_name(memories[-1])} of "
            f"{' in '.join(model(group[0][0]))} grow by a power of the sequence length",
            figures,
            group,
            *memories,
        )


def softmax_bytes(memory: CaseMemory) -> int:
    """Returns the bytes that the softmax of attention keeps."""
    return sum(each.n_bytes for each in memory.modules if part(each.module) == SOFTMAX)


def residual(view: View[Case]) -> Iterator[Conclusion]:
    """Says what a block keeps, as a multiple of one activation of the residual stream."""
    for row, memory in longest(view):
        if block_bytes(row):
            kept = f"In {place(row)}, of {kept_name(memory)} in the residual stream and of a block"
            yield from listed(kept, RESIDUAL, row, memory)


def predicted(view: View[Case]) -> Iterator[Conclusion]:
    """The least and the most that predictions are of what was held."""
    return extremes(
        "The predicted peak is",
        OVER_HELD,
        view.rows,
        of="of what was held",
        behind=lambda row: (source(row),),
        where=place,
    )


def notes(view: View[Case]) -> Iterator[str]:
    """Yields notes on what was run, what the figures include, and what a record lacks."""
    yield f"Naive attention, AdamW foreach; precisions {', '.join(precisions(view.setting))}."
    yield (
        "Activations are what the forward pass makes and the backward pass lets go, logits among them; a "
        "forward pass alone has none. Weight casts are the copies of weights that autocast makes."
    )
    if any(kept_name(memory) != "activations" for _, memory in recorded(view)):
        yield (
            "Not measured in this record: casts of weights by themselves. Under autocast they stand among "
            "the activations, in every table and plot here."
        )
    if not view.on_gpu:
        yield (
            "On a CPU the recorded figures are of what torch's tensors ask for; the measured one is the "
            "growth of the resident memory. Predictions are for a GPU, and stand here without cuBLAS's "
            "workspaces and the rounding of its allocator; of how operators keep their inputs a CPU differs "
            "a little."
        )
    for row, memory in longest(view):
        if memory.not_joined is not None:
            yield f"{place(row)}: its memory is not joined to its kernels: {memory.not_joined}."


CASE = (*values.SIZE, values.PRECISION)
RESIDUAL = (
    Value("one activation", "bytes", residual_bytes),
    Value("a block keeps", "bytes", block_bytes),
    Value("over one activation", "ratio", block_over_residual),
)
STUDY = Study(
    title="What is a step's memory held for, phase by phase, and how does it grow?",
    points=points,
    tables=(
        table(
            "Peak memory by phase",
            (
                *CASE,
                values.STATUS,
                Value("measured", "bytes", lambda row: row.peak_bytes),
                *map(in_phase, PHASES),
                Value("recorded", "bytes", lambda row: row.memory and row.memory.peak_bytes),
                Value("reserved", "bytes", lambda row: row.memory and row.memory.reserved_bytes),
            ),
            note="Measured and recorded are from the case's building on, phases of its second step.",
        ),
        purposes,
        table(
            "One activation of the residual stream, and what a block keeps",
            (
                *CASE,
                *RESIDUAL,
            ),
            lambda view: (row for row, _ in recorded(view) if row.point.case.workload.trains),
            note="batch × seq_len × d_model in the parameters' type; what blocks keep is recorded.",
        ),
        table(
            lambda line: f"{place(line[0])}: activations by module",
            (
                label("module", lambda line: line[1]),
                Value("n", "count", lambda line: line[2]),
                Value("activations", "bytes", lambda line: line[3]),
                Value(
                    "share", "share", lambda line: ratio(line[3], activations_bytes(line[0].memory))
                ),
            ),
            modules,
            each=lambda line: line[0].point.case,
            note="The innermost module that ran; * stands for every block.",
        ),
        table(
            lambda line: f"{place(line[0])}: the largest allocations",
            (
                Value("each", "bytes", lambda line: line[1].n_bytes),
                Value("n", "count", lambda line: line[1].n),
                text("for", lambda line: line[1].purpose.replace("_", " ")),
                text("made in", lambda line: line[1].made_in),
                label("module", lambda line: line[1].part or None),
                label("line", lambda line: line[1].source),
            ),
            lambda view: (
                (row, each) for row, memory in longest(view) for each in memory.largest[:MOST_LARGE]
            ),
            each=lambda line: line[0].point.case,
            note="Lines are those of Python that a GPU's allocator saw; the backward pass has none.",
        ),
        clock(PEAKS_TITLE, PEAK_COLUMNS, peak_rows, PEAKS_NOTE),
        clock(QUEUE_TITLE, QUEUE_COLUMNS, queue_rows, QUEUE_NOTE),
        table(
            "Predicted beside held",
            (
                *CASE,
                Value("predicted", "bytes", predicted_bytes),
                Value("held", "bytes", held_bytes),
                OVER_HELD,
            ),
            lambda view: (row for row in view.rows if held_bytes(row) is not None),
            note="On a GPU as measured, on a CPU as recorded in the phase of the predicted peak.",
        ),
        table(
            "What levers would free: predicted, not measured",
            (
                *of_row(*CASE),
                label("lever", lambda line: line[1]),
                Value("predicted peak", "bytes", lambda line: line[2]),
                Value(
                    "over none's", "ratio", lambda line: ratio(line[2], predicted_bytes(line[0]))
                ),
            ),
            levers,
        ),
    ),
    plots=(
        timelines,
        plot(
            "Peak memory of a step by sequence length",
            values.SEQ_LEN,
            Value("peak", "bytes", peak_bytes),
            lambda row: f"{' '.join(model(row))} {row.point.case.workload.pass_}",
            log="xy",
        ),
    ),
    claims=(shares, growth, residual, predicted),
    notes=notes,
)
