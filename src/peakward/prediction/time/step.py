"""The time of a case's step on a GPU: its operators' times, under the host's.

Nothing is timed twice: of each operator of `prediction.operators` the device's time follows from
shapes and rates (`operator_time`), the host's from their number (`dispatch`, and where code is
compiled or captured its siblings), and the step's from who waits for whom (`queue`).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable

from peakward.prediction.floor import compute_type
from peakward.prediction.operators.category import category
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.time import captured_dispatch, compiled_dispatch, dispatch, queue
from peakward.prediction.time.device_model import DeviceModel
from peakward.prediction.time.errors_seen import interval
from peakward.prediction.time.operator_time import OperatorCost, cost
from peakward.prediction.time.queue import Stretch
from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Phase
from peakward.records.op_graph import Operator, OpGraph
from peakward.records.step_time import OperatorTime, PhaseTime, StepTime, Waits

_Key = tuple[str, Phase, str | None, tuple[str, ...]]


def step_time(case: ModelCase, on: DeviceModel) -> StepTime:
    """Predict the median time of the case's step, steps following one another.

    Raises:
        PeakwardError: operators that are not stated in closed form, or a compute type whose rate
            on this device nobody knows.
    """
    if case.device != "cuda":
        raise PeakwardError(
            "expected a case on a GPU, to predict its time, got one on a CPU: "
            "`floor` bounds a CPU's"
        )
    graph = op_graph(case, compute_capability=on.compute_capability)
    timed = [(each, cost(each, case, on)) for each in graph.operators]
    if any(found.device_s is None for _, found in timed):
        raise PeakwardError(
            f"expected a device whose rate in {compute_type(case)} is known, got {on.name}: "
            "calibrate it, or choose another precision"
        )
    phases = _phases(case, graph, timed, on)
    device_s, host_s = sum(p.device_s for p in phases), sum(p.host_s for p in phases)
    bound: Waits = "host" if host_s > device_s else "device"
    step_s = queue.step_s([Stretch(p.n_launches, p.host_s, p.device_s) for p in phases])
    return StepTime(
        case=case,
        device=on.name,
        source=on.source,
        step_s=interval(step_s, on.source, bound),
        bound=bound,
        phases=phases,
        operators=_operators(timed),
    )


def _phases(
    case: ModelCase,
    graph: OpGraph,
    timed: Iterable[tuple[Operator, OperatorCost]],
    on: DeviceModel,
) -> tuple[PhaseTime, ...]:
    device_s: dict[Phase, float] = defaultdict(float)
    n_launches: dict[Phase, float] = defaultdict(float)
    for operator, found in timed:
        assert found.device_s is not None
        device_s[operator.phase] += operator.count * found.device_s
        n_launches[operator.phase] += operator.count * found.n_launches
    calls = _calls(case)
    return tuple(
        PhaseTime(
            phase=phase,
            device_s=device_s[phase],
            host_s=on.call_s * calls(case, graph, phase),
            n_launches=max(1, math.ceil(n_launches[phase])),
        )
        for phase in device_s
    )


def _calls(case: ModelCase) -> Callable[[ModelCase, OpGraph, Phase], float]:
    """Who issues its launches."""
    if case.configuration.cuda_graphs:
        return captured_dispatch.calls
    return dispatch.calls if case.configuration.compile == "none" else compiled_dispatch.calls


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
