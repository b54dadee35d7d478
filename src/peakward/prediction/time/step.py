"""The time of a case's step on a GPU.

Its operators are those of `prediction.operators`, its host's costs those of `dispatch`, and where code
is compiled or captured of its siblings.
"""

from collections.abc import Callable

from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.time import captured_dispatch, compiled_dispatch, dispatch
from peakward.prediction.time.device_model import DeviceModel
from peakward.prediction.time.graph_time import graph_time
from peakward.prediction.time.setting import of_case
from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Phase
from peakward.records.op_graph import OpGraph
from peakward.records.prediction import StepTime


def step_time(case: ModelCase, on: DeviceModel) -> StepTime:
    """Predict the median time of the case's step, steps following one another.

    Of a mixture of experts routing is taken to be balanced. Its interval is that of dense models: four
    mixtures on an H100 took 4% to 6% longer (`2026-11-22-h100-accuracy`).

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
    return graph_time(case, graph, of_case(case), lambda phase: calls(case, graph, phase), on)


def _calls(case: ModelCase) -> Callable[[ModelCase, OpGraph, Phase], float]:
    """Who issues its launches."""
    if case.configuration.cuda_graphs:
        return captured_dispatch.calls
    return dispatch.calls if case.configuration.compile == "none" else compiled_dispatch.calls
