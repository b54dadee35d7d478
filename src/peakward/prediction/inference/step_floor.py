"""The least time of one step of serving, from its cost."""

from peakward.prediction.ceilings import Ceilings, roof
from peakward.records.inference import Cost, StepFloor


def step_floor(cost: Cost, on: Ceilings) -> StepFloor:
    """The longer of arithmetic and traffic, under ceilings whose matmul rate is known."""
    return StepFloor(**roof(cost.flops, cost.bytes, on)._asdict())
