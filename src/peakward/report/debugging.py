"""The report of a hunt: the operator, the cause and what helps first; then the steps before."""

from peakward.records.debugging import Fault, Hunt, StepSeen, TensorSummary, Trial
from peakward.records.errors import printable
from peakward.records.study import Cell, Column, Table
from peakward.report.columns import without_empty
from peakward.report.document import (
    Code,
    Document,
    Fact,
    Facts,
    Items,
    Leaf,
    Note,
    Panel,
    Paragraph,
    Section,
    TableBlock,
)
from peakward.report.format import format_cell

MOST_STEPS = 12


def document(found: Hunt) -> Document:
    """The first screen says what to do."""
    return Document(
        title=f"Debug of {printable(found.name)}",
        headline=printable(f"{_headline(found)} On {found.environment.device_name}."),
        blocks=tuple(_first(found)),
        sections=tuple(each for each in (_steps(found), _modules(found)) if each is not None),
    )


def _headline(found: Hunt) -> str:
    fault = found.fault
    if found.outcome == "finite":
        return f"{_steps_of(found.n_steps)} stayed finite."
    if fault is None:
        return f"A value turned non-finite within {found.n_steps:,} steps, and its operator was not found."
    where = f" in {fault.module} ({fault.module_type})" if fault.module else ""
    return f"The first value that is not finite was made at step {fault.step:,}{where}, in {_phase(fault)}."


def _phase(fault: Fault) -> str:
    return {
        "data": "the batch",
        "forward": "the forward pass",
        "backward": "the backward pass",
        "gradients": "what the step does with gradients",
        "optimizer": "the optimizer",
    }[fault.phase]


def _first(found: Hunt) -> list[Leaf | Panel]:
    blocks: list[Leaf | Panel] = []
    if found.cause is not None:
        passing = [each for each in found.trials if each.passes]
        lines: list[Leaf] = [
            Paragraph(text=f"{printable(found.cause.sentence)} To mend it: {found.cause.advice}.")
        ]
        if passing:
            lines += [Paragraph(text=_passes(passing[0])), Code(text=passing[0].code)]
        blocks.append(Panel(title=f"Cause: {found.cause.kind}", blocks=tuple(lines)))
    if found.reason is not None:
        blocks.append(Note(text=printable(found.reason)))
    if found.replayed_bitwise is False and found.outcome == "found":
        blocks.append(
            Note(
                text="The replay gives other losses than the run, and a value turns non-finite in it too."
            )
        )
    blocks.append(Facts(facts=tuple(_facts(found))))
    if found.trials:
        blocks.append(Items(texts=tuple(map(_trial, found.trials))))
    return blocks


def _passes(trial: Trial) -> str:
    loss = "" if trial.last_loss is None else f", with a loss of {trial.last_loss:.4g} at their end"
    return f"With this change {_steps_of(trial.n_steps)} from the snapshot on stay finite{loss}:"


def _trial(trial: Trial) -> str:
    if trial.error is not None:
        return printable(f"{trial.fix}, {trial.target}: the step raises {trial.error}.")
    became = "passes" if trial.passes else "fails again"
    return printable(f"{trial.fix}, {trial.target}: {became} ({_steps_of(trial.n_steps)}).")


def _snapshots(n: int) -> str:
    return "1 snapshot" if n == 1 else f"{n:,} snapshots"


def _steps_of(n: int) -> str:
    return "1 step" if n == 1 else f"{n:,} steps"


def _facts(found: Hunt) -> list[Fact]:
    facts = [] if found.fault is None else _of_fault(found.fault)
    if found.with_batch_before is not None:
        same = "is finite" if found.with_batch_before else "fails too"
        facts.append(Fact(name="on the batch before", value=f"the step {same}"))
    if found.snapshot_step is not None:
        exact = "bit for bit" if found.replayed_bitwise else "not bit for bit"
        facts.append(Fact(name="replayed", value=f"from step {found.snapshot_step:,} on, {exact}"))
    if found.last_loss is not None:
        facts.append(Fact(name="last finite loss", value=f"{found.last_loss:.6g}"))
    cost = found.watching
    share = cost.snapshots_s / cost.run_s if cost.run_s else 0.0
    facts.append(
        Fact(
            name="cost of watching",
            value=f"{_snapshots(cost.n_snapshots)} of {format_cell(cost.snapshot_bytes, 'bytes')}, one in "
            f"{cost.snapshot_every:,} steps: {format_cell(share, 'share')} of the run's time",
        )
    )
    return facts


def _of_fault(fault: Fault) -> list[Fact]:
    operator = (
        fault.operator
        if fault.derivative_of is None
        else f"{fault.operator} of {fault.derivative_of}"
    )
    facts = [Fact(name="operator", value=printable(operator))]
    if fault.source is not None:
        facts.append(Fact(name="line", value=printable(fault.source)))
    facts.append(Fact(name="its output", value=_tensor(fault.output)))
    if fault.channel is not None:
        at = fault.channel
        facts.append(
            Fact(
                name="channel",
                value=f"{at.index} of axis {at.axis}: {at.n_nonfinite:,} there, "
                f"{at.n_nonfinite_elsewhere:,} elsewhere",
            )
        )
    facts += [Fact(name=f"its input {each.role}", value=_tensor(each)) for each in fault.inputs]
    if fault.exact_magnitude is not None:
        facts.append(Fact(name="in fp64", value=f"largest magnitude {fault.exact_magnitude:.4g}"))
    facts.append(Fact(name="it reached", value=printable(fault.reached)))
    return facts


def _tensor(of: TensorSummary) -> str:
    shape = " × ".join(map(str, of.shape)) or "a number"
    said = f"{of.dtype}, {shape}"
    if of.n_nonfinite:
        said += f", {of.n_nonfinite:,} not finite"
    if of.lowest is not None and of.highest is not None:
        said += f", {of.lowest:.4g} to {of.highest:.4g}"
    if of.n_zero:
        said += f", {of.n_zero:,} {'is' if of.n_zero == 1 else 'are'} 0"
    return said


_STEP_COLUMNS = (
    Column(name="step", unit="name"),
    Column(name="loss", unit="text"),
    Column(name="gradient norm", unit="text"),
    Column(name="update ratio", unit="text"),
    Column(name="learning rate", unit="text"),
    Column(name="loss scale", unit="text"),
)


def _steps(found: Hunt) -> Section | None:
    if not found.steps:
        return None
    rows = tuple(map(_row, found.steps[-MOST_STEPS:]))
    table = without_empty(Table(title="", columns=_STEP_COLUMNS, rows=rows))
    return Section(title="The steps before", blocks=(TableBlock(table=table),))


def _row(step: StepSeen) -> tuple[Cell, ...]:
    figures = (
        step.loss,
        step.gradient_norm,
        step.update_ratio,
        step.learning_rate,
        step.loss_scale,
    )
    return (f"{step.step:,}", *map(_number, figures))


def _modules(found: Hunt) -> Section | None:
    if not found.modules:
        return None
    columns = (
        Column(name="module", unit="name"),
        Column(name="type", unit="name"),
        Column(name="largest, first", unit="text"),
        Column(name="largest, last", unit="text"),
        Column(name="spread, first", unit="text"),
        Column(name="spread, last", unit="text"),
        Column(name="zeros, last", unit="share"),
    )
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            printable(each.module) or "the model",
            each.module_type,
            _number(each.largest[0]),
            _number(each.largest[-1]),
            _number(each.spread[0]),
            _number(each.spread[-1]),
            each.zero_share[-1],
        )
        for each in found.modules
    )
    said = f"Outputs at the first and the last of {len(found.modules[0].largest):,} replayed steps."
    return Section(
        title="Modules near it",
        blocks=(
            Paragraph(text=said),
            TableBlock(table=Table(title="", columns=columns, rows=rows)),
        ),
    )


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"
