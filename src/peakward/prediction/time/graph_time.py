"""The time of a graph of operators on a GPU: each operator's, under the host's.

Nothing is timed twice: of each operator the device's time follows from shapes and rates
(`operator_time`), the host's from their number, and the step's from who waits for whom (`queue`).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable

from peakward.prediction.operators.category import category
from peakward.prediction.operators.tape import INT32
from peakward.prediction.time import queue
from peakward.prediction.time.device_model import DeviceModel
from peakward.prediction.time.errors_seen import ELSEWHERE, interval
from peakward.prediction.time.operator_time import OperatorCost, cost
from peakward.prediction.time.own_kernels import is_guess
from peakward.prediction.time.queue import Stretch
from peakward.prediction.time.setting import Setting
from peakward.records.case import Case
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Phase
from peakward.records.op_graph import READ_BY_HOST, Operator, OpGraph
from peakward.records.prediction import OperatorTime, PhasePrediction, StepTime, Waits

_Key = tuple[str, Phase, str | None, tuple[str, ...]]
Units = Callable[[Phase], float]
"""The host's cost of a phase, in units of a call (`dispatch`)."""


def graph_time(
    case: Case, graph: OpGraph, setting: Setting, units: Units, on: DeviceModel
) -> StepTime:
    """Predict the median time of a step of these operators, steps following one another.

    Raises:
        PeakwardError: a compute type whose rate on this device nobody knows.
    """
    timed = [(each, cost(each, setting, on)) for each in graph.operators]
    unknown = next((each for each, found in timed if found.device_s is None), None)
    if unknown is not None:
        raise PeakwardError(
            f"expected a device whose rate of {unknown.name} in {_dtype(unknown)} is known, got "
            f"{on.name}: calibrate it, or choose another precision"
        )
    phases = _phases(timed, units, on)
    device_s, host_s = sum(p.device_s for p in phases), sum(p.host_s for p in phases)
    bound: Waits = "host" if host_s > device_s else "device"
    step_s = _step_s(phases)
    elsewhere_s = None
    if not on.host_is_known:
        least_s, most_s = (_step_s(phases, factor) for factor in ELSEWHERE)
        elsewhere_s = (least_s, most_s)
    guessed = [(op, found) for op, found in timed if is_guess(op, setting, on.compute_capability)]
    guessed_s = sum(op.count * (found.device_s or 0.0) for op, found in guessed)
    return StepTime(
        case=case,
        device=on.name,
        source=on.source,
        step_s=interval(step_s, on.source, bound, guessed_s, elsewhere_s),
        bound=bound,
        phases=phases,
        operators=_operators(timed),
        never_measured=tuple(sorted({op.name for op, _ in guessed})),
        host_is_known=on.host_is_known,
    )


def _step_s(phases: Iterable[PhasePrediction], host_factor: float = 1.0) -> float:
    return queue.step_s(
        [Stretch(p.n_launches, host_factor * p.host_s, p.device_s, p.n_waits) for p in phases]
    )


def _dtype(operator: Operator) -> str:
    return operator.inputs[0].dtype


def _phases(
    timed: Iterable[tuple[Operator, OperatorCost]], units: Units, on: DeviceModel
) -> tuple[PhasePrediction, ...]:
    device_s: dict[Phase, float] = defaultdict(float)
    n_launches: dict[Phase, float] = defaultdict(float)
    n_waits: dict[Phase, int] = defaultdict(int)
    for operator, found in timed:
        assert found.device_s is not None
        device_s[operator.phase] += operator.count * found.device_s
        n_launches[operator.phase] += operator.count * found.n_launches
        n_waits[operator.phase] += operator.count if _is_read_by_host(operator) else 0
    return tuple(
        PhasePrediction(
            phase=phase,
            device_s=device_s[phase],
            host_s=on.call_s * units(phase),
            n_launches=max(1, math.ceil(n_launches[phase])),
            n_waits=n_waits[phase],
        )
        for phase in device_s
    )


def _is_read_by_host(operator: Operator) -> bool:
    """A read of a scalar; and a copy of integers into the same type, which goes to another device: where each
    expert's rows end."""
    if operator.name == READ_BY_HOST:
        return True
    given, made = operator.inputs, operator.outputs
    return operator.name == "aten._to_copy" and given == made and given[0].dtype == INT32


def _operators(timed: Iterable[tuple[Operator, OperatorCost]]) -> tuple[OperatorTime, ...]:
    """Sums over sizes; the bound is that of the longest of them."""
    groups: dict[_Key, list[tuple[Operator, OperatorCost]]] = {}
    for operator, found in timed:
        key = (operator.name, operator.phase, operator.module, operator.fused)
        groups.setdefault(key, []).append((operator, found))
    rows = [_operator(key, group) for key, group in groups.items()]
    return tuple(sorted(rows, key=lambda each: -each.device_s))


def _operator(key: _Key, group: list[tuple[Operator, OperatorCost]]) -> OperatorTime:
    name, phase, module, fused = key
    seconds = [operator.count * (found.device_s or 0.0) for operator, found in group]
    longest = seconds.index(max(seconds))
    return OperatorTime(
        name=name,
        phase=phase,
        module=module,
        category=category(name),
        n_calls=sum(each.count for each, _ in group),
        flops=sum(each.count * each.flops for each, _ in group),
        bytes=sum(each.count * (each.bytes_read + each.bytes_written) for each, _ in group),
        device_s=sum(seconds),
        bound=group[longest][1].bound,
        fused=fused,
    )
