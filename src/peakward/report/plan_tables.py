"""The tables of a plan, with its devices side by side."""

from collections.abc import Iterable, Sequence

import msgspec

from peakward.records.case import ModelCase
from peakward.records.measurement import Interval
from peakward.records.memory import MemorySplit
from peakward.records.plan import Change, DevicePlan, Forecast, Plan
from peakward.records.prediction import StepTime
from peakward.records.study import Cell, Column, Table, Unit
from peakward.report.columns import without_empty
from peakward.report.format import format_interval

NOT_COMPUTED = "not computed"
WAITS = {"device": "GPU", "host": "host"}


def speed(plan: Plan) -> Table:
    """The predicted time of a step on each device."""
    return Table(
        title="Time of a step",
        columns=(
            Column(name="device", unit="name"),
            Column(name="step", unit="s"),
            Column(name="90% interval"),
            Column(name="tokens/s", unit="tokens_per_s"),
            Column(name="MFU", unit="share"),
            Column(name="floor", unit="s"),
            Column(name="limited by"),
        ),
        rows=tuple(_speed_row(each.forecast) for each in plan.devices),
        note=_rates(plan),
    )


def memory(plan: Plan) -> Table:
    """Whether the case fits each device, and the largest case that does."""
    return Table(
        title="Memory of a GPU",
        columns=(
            Column(name="device", unit="name"),
            Column(name="needed", unit="bytes"),
            Column(name="available", unit="bytes"),
            Column(name="fits"),
            Column(name="largest batch size", unit="count"),
            Column(name="longest sequence", unit="count"),
        ),
        rows=tuple(
            (
                each.forecast.device_name,
                _or_not(each.forecast.needed_bytes),
                each.forecast.limit_bytes,
                fits(each.forecast.fits),
                _or_not(each.largest_batch_size),
                _or_not(each.longest_seq_len),
            )
            for each in plan.devices
        ),
        note=" ".join(filter(None, (_beyond(plan), _past_model(plan)))) or None,
    )


def cost(plan: Plan) -> Table:
    """Energy and money for a million tokens."""
    table = Table(
        title="A million tokens",
        columns=(
            Column(name="device", unit="name"),
            Column(name="GPU-hours", unit="count"),
            Column(name="90% interval"),
            Column(name="cost", unit="count"),
            Column(name="90% interval of it"),
            Column(name="energy at most", unit="j"),
        ),
        rows=tuple(_cost_row(each.forecast) for each in plan.devices if each.forecast.step_s),
        note="Energy is an upper limit: every board draws its power limit all the time. The rest "
        "of the machine and its cooling are not counted.",
    )
    return without_empty(table)


def split(found: MemorySplit) -> Table:
    """The contents of the peak."""
    parts = msgspec.structs.asdict(found)
    total = found.total_bytes
    return Table(
        title="",
        columns=(
            Column(name="held for", unit="name"),
            Column(name="bytes", unit="bytes"),
            Column(name="share", unit="share"),
        ),
        rows=tuple(
            (name.removesuffix("_bytes").replace("_", " "), size, size / total)
            for name, size in sorted(parts.items(), key=lambda each: -each[1])
            if size
        ),
    )


def changes(found: DevicePlan) -> Table:
    """Each lever alone, then the composition."""
    together = found.composition
    last = () if together is None or len(together.levers) == 1 else (together,)
    return Table(
        title=found.forecast.device_name,
        columns=(
            Column(name="lever", unit="name"),
            Column(name="step", unit="s"),
            Column(name="speed-up", unit="ratio"),
            Column(name="90% interval"),
            Column(name="needed", unit="bytes"),
            Column(name="fits"),
        ),
        rows=tuple(
            (
                " + ".join(each.levers),
                None if each.step_s is None else each.step_s.estimate,
                None if each.speedup is None else each.speedup.estimate,
                _ends(each.speedup, "ratio"),
                each.needed_bytes,
                None if each.fits is None else fits(each.fits),
            )
            for each in (*found.changes, *last)
            if each.step_s is not None or each.needed_bytes is not None
        ),
        note=guessed_kernels((*found.changes, *last)),
    )


def phases(found: Forecast) -> Table:
    """The time that each phase needs on the device and on the host."""
    assert found.time is not None
    return Table(
        title=found.device_name,
        columns=(
            Column(name="phase", unit="name"),
            Column(name="on the device", unit="s"),
            Column(name="on the host", unit="s"),
            Column(name="launches", unit="count"),
        ),
        rows=tuple(
            (each.phase, each.device_s, each.host_s, each.n_launches) for each in found.time.phases
        ),
    )


def operators(found: Forecast, most: int) -> Table:
    """The operators that take the device longest."""
    assert found.time is not None
    total_s = found.time.device_s
    return Table(
        title="",
        columns=(
            Column(name="operator", unit="name"),
            Column(name="phase"),
            Column(name="module"),
            Column(name="calls", unit="count"),
            Column(name="time", unit="s"),
            Column(name="share", unit="share"),
            Column(name="bound by"),
        ),
        rows=tuple(
            (
                each.name.removeprefix("aten."),
                each.phase,
                each.module,
                each.n_calls,
                each.device_s,
                each.device_s / total_s,
                each.bound,
            )
            for each in found.time.operators[:most]
        ),
    )


def communication(plan: Plan) -> Table:
    """The communication between the GPUs of a group."""
    rows: list[tuple[Cell, ...]] = []
    for each in plan.devices:
        found = each.forecast.communication
        if found is not None:
            rows.append(
                (
                    each.forecast.device_name,
                    found.sent_bytes,
                    found.link_bytes_per_s,
                    found.time_s.estimate,
                    found.exposed_s.estimate,
                    _ends(found.exposed_s, "s"),
                )
            )
    return Table(
        title="Communication in a step",
        columns=(
            Column(name="device", unit="name"),
            Column(name="each GPU sends", unit="bytes"),
            Column(name="link, one way", unit="bytes_per_s"),
            Column(name="takes", unit="s"),
            Column(name="step waits", unit="s"),
            Column(name="90% interval"),
        ),
        rows=tuple(rows),
        note="At the high end nothing overlaps with compute.",
    )


def absent(plan: Plan) -> Table:
    """Figures that were not computed: each reason once, with its devices and levers."""
    holders: dict[tuple[str, str], dict[str, None]] = {}
    for each in plan.devices:
        name = each.forecast.device_name
        on = f" on {each.forecast.device}" if len(plan.devices) > 1 else ""
        for gap in (*each.forecast.absent, *each.absent):
            holders.setdefault((gap.figure, gap.reason), {})[name] = None
        for change in each.changes:
            base = {(gap.figure, gap.reason) for gap in each.forecast.absent}
            for gap in change.absent:
                if (gap.figure, gap.reason) not in base:
                    of = f"{change.levers[0]}{on}"
                    holders.setdefault((gap.figure, gap.reason), {})[of] = None
    return Table(
        title="",
        columns=(
            Column(name="figure", unit="name"),
            Column(name="of", unit="name"),
            Column(name="because"),
        ),
        rows=tuple(
            (figure, _listed(tuple(of)), reason) for (figure, reason), of in holders.items()
        ),
    )


def fits(found: bool | None) -> str:
    """The answer in one word."""
    return NOT_COMPUTED if found is None else "yes" if found else "no"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _speed_row(found: Forecast) -> tuple[Cell, ...]:
    step = found.step_s
    return (
        found.device_name,
        NOT_COMPUTED if step is None else step.estimate,
        _ends(step, "s"),
        None if found.tokens_per_s is None else found.tokens_per_s.estimate,
        None if found.mfu is None else found.mfu.estimate,
        found.floor_s,
        None if step is None else _waits(found),
    )


def _beyond(plan: Plan) -> str | None:
    """A note on cases that fit although they need more than the limit."""
    found = (each.forecast for each in plan.devices)
    if not any(each.fits and (each.needed_bytes or 0) > each.limit_bytes for each in found):
        return None
    return (
        "Needed assumes no limit. Near the limit the allocator returns its free memory, and "
        "the case fits into less."
    )


def _past_model(plan: Plan) -> str | None:
    """A note on sequences beyond the model's limit, because computed positions have no end."""
    if not isinstance(plan.case, ModelCase):
        return None
    accepted = plan.case.model.max_seq_len
    if all((each.longest_seq_len or 0) <= accepted for each in plan.devices):
        return None
    return (
        f"The model accepts {accepted:,} tokens. A longer sequence says only that memory would "
        "hold it."
    )


def _rates(plan: Plan) -> str | None:
    guessed = guessed_kernels(each.forecast.time for each in plan.devices)
    return " ".join(filter(None, (_sources(plan), guessed))) or None


def _sources(plan: Plan) -> str | None:
    """A note on which devices' rates are calibrated."""
    timed = [each.forecast for each in plan.devices if each.forecast.time is not None]
    calibrated = [
        each.device_name for each in timed if each.time and each.time.source != "datasheet"
    ]
    if not calibrated:
        return "Rates are from the datasheets." if timed else None
    others = "; the others' are from the datasheets" if len(calibrated) < len(timed) else ""
    foreign = any(
        each.time and each.time.source != "datasheet" and not each.time.host_is_known
        for each in timed
    )
    host = " It is of another host than this: intervals allow for 0.43 to 2.3 times its costs of a call."
    return f"Rates of {', '.join(calibrated)} are from its calibration{others}.{host if foreign else ''}"


def _waits(found: Forecast) -> str:
    assert found.time is not None
    shared = found.communication
    if shared is not None and shared.exposed_s.estimate > found.time.step_s.estimate:
        return "link"
    return WAITS[found.time.bound]


def _cost_row(found: Forecast) -> tuple[Cell, ...]:
    price, energy, hours = (
        found.cost_per_million_tokens,
        found.energy_per_token_j,
        found.gpu_hours_per_million_tokens,
    )
    return (
        found.device_name,
        None if hours is None else hours.estimate,
        _ends(hours, "count"),
        None if price is None else price.estimate,
        _ends(price, "count"),
        None if energy is None else energy.high * 1e6,
    )


def _ends(found: Interval | None, unit: Unit) -> str | None:
    return None if found is None else format_interval(found, unit)


def _or_not(value: int | None) -> Cell:
    return NOT_COMPUTED if value is None else value


def guessed_kernels(times: Iterable[StepTime | Change | None]) -> str | None:
    """A note that names these operators and their effect on intervals; None where there are none. An operator
    and its gradients share one name, and what a compiler fuses has none."""
    found = {name for time in times if time is not None for name in time.never_measured}
    fused = {each for each in found if each.startswith("inductor.")}
    names = sorted(
        {each.removeprefix("peakward.").replace("_backward", "") for each in found - fused}
    )
    of_whom = [f"Peakward's {', '.join(names)}"] if names else []
    if fused:
        of_whom.append("the kernels that Inductor makes of such code")
    if not of_whom:
        return None
    return (
        f"No stored result has timed {' and '.join(of_whom)}. Intervals include half to "
        "twice the time of these kernels and their gradients."
    )
