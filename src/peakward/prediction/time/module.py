"""The time of a captured module's step on a GPU."""

from peakward.prediction.time import module_dispatch
from peakward.prediction.time.device_model import DeviceModel
from peakward.prediction.time.graph_time import graph_time
from peakward.prediction.time.setting import of_module
from peakward.records.op_graph import ModuleCapture
from peakward.records.prediction import StepTime


def module_time(capture: ModuleCapture, on: DeviceModel) -> StepTime:
    """Predict the median time of the module's step, steps following one another.

    Raises:
        PeakwardError: a compute type whose rate on this device nobody knows.
    """
    return graph_time(
        capture.case,
        capture.graph,
        of_module(capture),
        lambda phase: module_dispatch.calls(capture, phase),
        on,
    )
