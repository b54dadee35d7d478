"""The place of each kind of operator of a step on a device's roofline, measured beside predicted."""

from collections import defaultdict
from typing import Literal

import msgspec

from peakward.prediction.ceilings import Ceilings, roof
from peakward.prediction.time.device_model import DeviceModel
from peakward.prediction.time.operator_time import cost
from peakward.prediction.time.setting import of_case
from peakward.records.case import ModelCase
from peakward.records.op_graph import Operator, OpGraph
from peakward.records.profile import CaseProfile
from peakward.studies.readings import ratio
from peakward.studies.roofline.arithmetic import operations
from peakward.studies.roofline.fills import fills_s
from peakward.studies.roofline.kinds import (
    ATTENTION_PRODUCTS,
    ELEMENTWISE,
    Product,
    kind,
    product,
    roles,
    traced_kind,
    traced_product,
)

NS = 1e-9


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """All operators of one kind in a step."""

    kind: str
    is_layer: bool
    """Products of a linear layer."""
    n_calls: int
    operations: float
    bytes: int
    """Operands, each moved once."""
    floor_s: float | None
    """The roofline's least time; None where the matmul rate is unknown."""
    bound: Literal["compute", "memory"] | None
    """Which side of the ridge."""
    measured_s: float | None
    """Of kernels, on a CPU of operators by their self time; None where the trace has other calls than
    the graph, or none."""
    predicted_s: float | None
    """None on a CPU, and on a device without a time model."""

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return ratio(self.operations, self.bytes) or 0.0

    @property
    def rate(self) -> float | None:
        """Operations a second."""
        return ratio(self.operations, self.measured_s)

    @property
    def roof_share(self) -> float | None:
        """The least time over the measured; what one above 1 may come of say `over_roof.causes`."""
        return ratio(self.floor_s, self.measured_s)

    @property
    def over_predicted(self) -> float | None:
        """Measured over predicted time."""
        return ratio(self.measured_s, self.predicted_s)


def places(
    case: ModelCase,
    graph: OpGraph,
    on: Ceilings,
    profile: CaseProfile | None,
    model: DeviceModel | None,
) -> tuple[Place, ...]:
    """Of every kind in the graph of the case's step, those that took longest first."""
    role_of = roles(graph)
    members: dict[str, list[Operator]] = defaultdict(list)
    for each in graph.operators:
        members[kind(each, role_of)].append(each)
    measured = {} if profile is None else _measured_s(profile, graph, role_of)
    found = [
        _place(name, each, on, measured.get(name), _predicted_s(case, each, model))
        for name, each in members.items()
    ]
    return tuple(sorted(found, key=lambda each: -(each.measured_s or each.floor_s or 0.0)))


def _place(
    name: str,
    members: list[Operator],
    on: Ceilings,
    measured_s: float | None,
    predicted_s: float | None,
) -> Place:
    computed = sum(each.count * operations(each) for each in members)
    moved = sum(each.count * (each.bytes_read + each.bytes_written) for each in members)
    least = roof(computed, moved, on)
    return Place(
        kind=name,
        is_layer=product(members[0]) is not None and name != ATTENTION_PRODUCTS,
        n_calls=sum(each.count for each in members),
        operations=computed,
        bytes=moved,
        floor_s=least.floor_s,
        bound=least.bound,
        measured_s=measured_s,
        predicted_s=predicted_s,
    )


def _predicted_s(
    case: ModelCase, members: list[Operator], model: DeviceModel | None
) -> float | None:
    if model is None:
        return None
    times = [(each.count, cost(each, of_case(case), model).device_s) for each in members]
    known = [n * device_s for n, device_s in times if device_s is not None]
    return sum(known) if len(known) == len(times) else None


def _measured_s(
    profile: CaseProfile, graph: OpGraph, role_of: dict[Product, str]
) -> dict[str, float]:
    """Seconds of a step by kind."""
    sums: dict[str, float] = defaultdict(float)
    for group in profile.profile.categories:
        if named := traced_kind(group):
            sums[named] += group.total_ns * NS / profile.n_steps
    for named, filling_s in fills_s(profile, graph).items():
        if filling_s is None:
            sums.pop(named, None)
        else:
            sums[named] += filling_s
            sums[ELEMENTWISE] -= filling_s
    return {**sums, **_products_s(profile, graph, role_of)}


def _products_s(
    profile: CaseProfile, graph: OpGraph, role_of: dict[Product, str]
) -> dict[str, float]:
    """Of the roles whose calls the trace has all of, and no others."""
    n_calls: dict[str, int] = defaultdict(int)
    for each in graph.operators:
        if (named := kind(each, role_of)) in role_of.values():
            n_calls[named] += each.count
    seen: dict[str, int] = defaultdict(int)
    total_s: dict[str, float] = defaultdict(float)
    for rate in profile.profile.operators:
        key = traced_product(rate)
        if key is not None and key in role_of:
            seen[role_of[key]] += rate.n
            total_s[role_of[key]] += rate.kernel_ns * NS / profile.n_steps
    return {
        named: total_s[named] for named, n in n_calls.items() if seen[named] == n * profile.n_steps
    }
