"""The time of a step on a GPU, of a case or of a captured module."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from peakward.prediction.operators.compiled_module.step import compiled_step
from peakward.prediction.operators.op_graph import category, op_graph
from peakward.prediction.operators.tape import INT32
from peakward.prediction.time import dispatch
from peakward.prediction.time.device_model import DeviceModel
from peakward.prediction.time.errors_seen import DEVICE, HOST, interval
from peakward.prediction.time.kernels import is_guess
from peakward.prediction.time.operator_time import OperatorCost, cost
from peakward.prediction.time.setting import Setting, of_case, of_compiled_module, of_module
from peakward.records.case import Case, ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Phase
from peakward.records.op_graph import WAITS, ModuleCapture, Operator, OpGraph
from peakward.records.prediction import OperatorTime, PhasePrediction, StepTime, Waits

# The time of a step from what the host and the device each need: who waits for whom.
#
# The host issues launches one after another and the device carries them out in order; the host may be
# as far ahead as the queue is deep. Where every launch takes the device longer, the step is the
# device's time, where every launch takes the host longer, the host's; with both in one step, as in
# an optimiser that keeps the device busy after a backward pass that did not, it lies between.

DEPTH = 1021
"""Launches that a stream takes before the host has to wait; CUDA does not say. In six stored profiles
of eager steps on an H200 (`2026-11-21-h200-study-kernels`, `run-2.7B`) no more ever waited."""
CHUNK = DEPTH // 40
"""Launches taken together."""
REPEATS = 4
"""Steps until the queue is as full at the end of one as at the end of the next."""


class Stretch(NamedTuple):
    """Launches that follow one another, alike."""

    n_launches: int
    host_s: float
    """Seconds of all launches together; the device's too."""
    device_s: float
    n_waits: int = 0
    """Times that the host needs a value from the device before it can go on: then all before is done, and the
    device has nothing until the host is back."""
    n_before: int = 0
    """Launches before the first wait; the other waits are spread evenly over those behind it."""


def queued_s(stretches: Sequence[Stretch]) -> float:
    """Seconds from one step's end to the next's, when many follow one another.

    The last of n alike launches ends b after the host issued it, or n·b after the first was issued
    or the device became free, whichever is last: so chunks of them need no look at each. A plan takes
    hundreds of thousands of chunks: plain comparisons, for `max` alone took a third of the time.
    """
    host_s = device_s = before_s = 0.0
    issued, done = 0, 0
    after, ends_s = [0], [0.0]
    chunks = [
        (n, waits, each.host_s / each.n_launches, each.device_s / each.n_launches)
        for each in stretches
        for n, waits in _chunks(each)
    ]
    for _ in range(REPEATS):
        before_s = device_s
        for n, waits, a_host_s, a_device_s in chunks:
            issued += n
            first_s = host_s + a_host_s
            host_s += n * a_host_s
            if issued > DEPTH:
                # The host waits until the device has come to a launch so far back, in chunk `done`.
                room = issued - DEPTH
                while after[done + 1] <= room:
                    done += 1
                share = (room - after[done]) / (after[done + 1] - after[done])
                room_s = ends_s[done] + share * (ends_s[done + 1] - ends_s[done])
                host_s = room_s if room_s > host_s else host_s
            begun_s = (device_s if device_s > first_s else first_s) + n * a_device_s
            last_s = host_s + a_device_s
            device_s = begun_s if begun_s > last_s else last_s
            after.append(issued)
            ends_s.append(device_s)
            if waits and host_s < device_s:
                host_s = device_s
    return device_s - before_s


def _chunks(stretch: Stretch) -> Iterator[tuple[int, bool]]:
    """Launches, and whether the host waits after them."""
    n_launches, n_waits = stretch.n_launches, stretch.n_waits
    # A wait follows a launch: the one whose result is read.
    first = min(max(1, stretch.n_before), n_launches)
    ends = [first + (n_launches - first) * i // n_waits for i in range(n_waits)]
    for i, (begin, end) in enumerate(pairwise([0, *ends, n_launches])):
        for done in range(begin, end, CHUNK):
            n = min(CHUNK, end - done)
            yield n, i < n_waits and done + n == end


# The time of a graph of operators on a GPU: each operator's, under the host's.
#
# Nothing is timed twice: of each operator the device's time follows from shapes and rates
# (`operator_time`), the host's from their number, and the step's from who waits for whom (`queued_s`).

_Key = tuple[str, Phase, str | None, tuple[str, ...]]
_Timed = tuple[Operator, OperatorCost]
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
    timed = list(_among_others(timed, captured=setting.captured))
    phases = _phases(timed, units, on)
    stretches = [each for phase in phases for each in _stretches(timed, phase)]
    device_s, host_s = sum(p.device_s for p in phases), sum(p.host_s for p in phases)
    bound: Waits = "host" if host_s > device_s else "device"
    step_s = queued_s(stretches)
    # A step that the device bounds by little is bound by a slower host.
    of_host = HOST[on.host_is_known]
    least_s, most_s = (
        queued_s([each._replace(host_s=factor * each.host_s) for each in stretches])
        for factor in of_host
    )
    guessed = [(op, found) for op, found in timed if is_guess(op, setting, on.compute_capability)]
    guessed_s = sum(op.count * (found.device_s or 0.0) for op, found in guessed)
    return StepTime(
        case=case,
        device=on.name,
        source=on.source,
        step_s=interval(
            step_s, of_host if bound == "host" else DEVICE[on.source], guessed_s, (least_s, most_s)
        ),
        bound=bound,
        phases=phases,
        operators=_operators(timed),
        never_measured=tuple(sorted({op.name for op, _ in guessed})),
        host_is_known=on.host_is_known,
        host_call_s=on.call_s,
        host_backward_call_s=on.backward_call_s,
    )


BETWEEN_S = 0.2e-6
"""Between two kernels of a step on the device, beyond what one takes that follows itself, as those that a
calibration times do. Told without it, steps that the device bounds took 2.5% more than was told on an H200 in
the median, and `2.7B`'s decode as one graph, whose 962 kernels are mostly short, 7% or 0.29 µs a kernel. In a
graph nothing was seen where one of both is more than its launch: the next launch is over by then."""


def _among_others(timed: Sequence[_Timed], *, captured: bool) -> Iterator[_Timed]:
    """Each with what lies before it."""
    is_behind_short = True
    for operator, found in timed:
        is_short = found.bound == "launch"
        if found.device_s is None or (captured and not (is_short and is_behind_short)):
            yield operator, found
        else:
            between_s = BETWEEN_S * found.n_launches
            yield operator, found._replace(device_s=found.device_s + between_s)
        is_behind_short = is_short


def _dtype(operator: Operator) -> str:
    return operator.inputs[0].dtype


def _phases(timed: Iterable[_Timed], units: Units, on: DeviceModel) -> tuple[PhasePrediction, ...]:
    device_s: dict[Phase, float] = defaultdict(float)
    n_launches: dict[Phase, float] = defaultdict(float)
    n_waits: dict[Phase, int] = defaultdict(int)
    for operator, found in timed:
        assert found.device_s is not None
        device_s[operator.phase] += operator.count * found.device_s
        n_launches[operator.phase] += operator.count * found.n_launches
        n_waits[operator.phase] += operator.count if _waits(operator) else 0
    return tuple(
        PhasePrediction(
            phase=phase,
            device_s=device_s[phase],
            host_s=on.host_call_s(phase) * units(phase),
            n_launches=max(1, math.ceil(n_launches[phase])),
            n_waits=n_waits[phase],
        )
        for phase in device_s
    )


def _stretches(timed: Sequence[_Timed], phase: PhasePrediction) -> Iterator[Stretch]:
    """The launches of a phase: those before a captured module's repeated parts, theirs, and those behind.

    A head over a large vocabulary keeps the device busy for long with few launches, blocks the host with
    many: taken alike they would hide one another. 1,024 tokens of a GPT-2 of 20 × 1024 took 9.26 ms on an
    H200; told alike they had 8.75, and apart 9.43. The host's time is shared out by operators.
    """
    own = [each for each in timed if each[0].phase == phase.phase]
    n_calls = sum(operator.count for operator, _ in own)
    host_s = phase.host_s
    if any(operator.name.startswith("aten._foreach_") for operator, _ in own):
        before_s = dispatch.BEFORE_FOREACH * host_s
        host_s -= before_s
        yield Stretch(n_launches=1, host_s=before_s, device_s=0.0)
    for run in _runs(own):
        share = sum(operator.count for operator, _ in run) / n_calls
        waits = [i for i, (operator, _) in enumerate(run) if _waits(operator)]
        yield Stretch(
            n_launches=max(1, math.ceil(sum(op.count * each.n_launches for op, each in run))),
            host_s=share * host_s,
            device_s=sum(op.count * (each.device_s or 0.0) for op, each in run),
            n_waits=sum(run[i][0].count for i in waits),
            n_before=round(sum(each.n_launches for _, each in run[: waits[0]])) if waits else 0,
        )


def _runs(own: Sequence[_Timed]) -> Iterator[Sequence[_Timed]]:
    """Operators lie in the order in which each first runs; a capture marks the parts that it numbers."""
    repeated = [i for i, (operator, _) in enumerate(own) if "*" in (operator.module or "")]
    begin, end = (repeated[0], repeated[-1] + 1) if repeated else (0, len(own))
    return filter(None, (own[:begin], own[begin:end], own[end:]))


def _waits(operator: Operator) -> bool:
    """A copy between host and device; and one of integers into the same type, which goes to the host: where
    each expert's rows end."""
    if operator.name in WAITS:
        return True
    given, made = operator.inputs, operator.outputs
    return operator.name == "aten._to_copy" and given == made and given[0].dtype == INT32


def _operators(timed: Iterable[_Timed]) -> tuple[OperatorTime, ...]:
    """Sums over sizes; the bound is that of the longest of them."""
    groups: dict[_Key, list[_Timed]] = {}
    for operator, found in timed:
        key = (operator.name, operator.phase, operator.module, operator.fused)
        groups.setdefault(key, []).append((operator, found))
    rows = [_operator(key, group) for key, group in groups.items()]
    return tuple(sorted(rows, key=lambda each: -each.device_s))


def _operator(key: _Key, group: list[_Timed]) -> OperatorTime:
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


# The time of a case's step on a GPU.
#
# Its operators are those of `prediction.operators`, its host's costs those of `dispatch`.


def step_time(case: ModelCase, on: DeviceModel) -> StepTime:
    """Predict the median time of the case's step, steps following one another.

    Of a mixture of experts routing is taken to be balanced. Its interval is that of dense models: four
    mixtures on an H100 took 4% to 6% longer (`2026-11-28-h100-accuracy`).

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
    calls = _calls(case)
    setting = of_case(case, compute_capability=on.compute_capability)
    return graph_time(case, graph, setting, lambda phase: calls(case, graph, phase), on)


def _calls(case: ModelCase) -> Callable[[ModelCase, OpGraph, Phase], float]:
    """Who issues its launches."""
    if case.configuration.cuda_graphs:
        return dispatch.captured_calls
    return dispatch.calls if case.configuration.compile == "none" else dispatch.compiled_calls


def module_time(capture: ModuleCapture, on: DeviceModel) -> StepTime:
    """Predict the median time of the module's step, steps following one another.

    Raises:
        PeakwardError: a compute type whose rate on this device nobody knows.
    """
    if capture.compiled is not None:
        step = compiled_step(capture)
        return graph_time(
            capture.case,
            step.graph,
            of_compiled_module(capture),
            lambda phase: dispatch.compiled_module_calls(capture, step, phase),
            on,
        )
    return graph_time(
        capture.case,
        capture.graph,
        of_module(capture),
        lambda phase: dispatch.module_calls(capture, phase),
        on,
    )
