"""The host's costs of an eager step, fitted anew to measured steps.

The form is `prediction.time.dispatch`'s, without checkpointing: units for an operator, for a block
forward and backward, for the optimiser's step and for each of its tensors.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from accuracy.records import Replayed
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.operators.plan import plan
from peakward.prediction.operators.weights import weights
from peakward.prediction.time import dispatch
from peakward.prediction.time.device_model import DeviceModel
from peakward.prediction.time.setting import of_case
from peakward.prediction.time.step import graph_time
from peakward.records.measurement import Phase

Costs = dict[str, float]
"""Units by constant."""
Numbers = npt.NDArray[np.float64]
ROUNDS = 30
LEAST_ERROR = 1e-3
"""Below it errors weigh alike."""


def covered(case: Replayed) -> bool:
    """Whether the form covers the case."""
    configuration = case.case.configuration
    return (
        configuration.compile == "none"
        and not configuration.cuda_graphs
        and configuration.checkpointing == "none"
        and configuration.optimizer == "adamw-foreach"
    )


def deployed() -> Costs:
    """The constants as they stand."""
    a_step, a_tensor = dispatch.OPTIMIZER["adamw-foreach"]
    return {
        "an operator": dispatch.OPERATOR,
        "a block forward": dispatch.BLOCK_FORWARD,
        "a block backward": dispatch.BLOCK_BACKWARD,
        "an optimiser's step": a_step,
        "a tensor of it": a_tensor,
    }


def work(case: Replayed) -> dict[Phase, Costs]:
    """How often a step needs each constant, phase by phase."""
    totals = op_graph(case.case).totals(lambda each: each.phase)
    n_blocks = case.case.model.n_layers * case.case.workload.accumulate
    blocks: dict[Phase, Costs] = {
        "forward": {"a block forward": n_blocks},
        "backward": {"a block backward": n_blocks},
    }
    found = {
        phase: {"an operator": float(totals[phase].n_calls), **costs}
        for phase, costs in blocks.items()
        if phase in totals
    }
    if "optimizer" in totals:
        n_tensors = sum(each.n for each in weights(plan(case.case)))
        found["optimizer"] = {"an optimiser's step": 1.0, "a tensor of it": float(n_tensors)}
    return found


def fit(cases: Sequence[Replayed], call_s: float) -> Costs:
    """The least sum of absolute relative errors, no cost below nought.

    Absolute, not squared: a host that was slow for a while should not set the costs. What a step
    takes beyond the host's own time, where the device is still busy, stays as it was predicted.
    What no case needs stays as it stands.
    """
    needed = [_total(each) for each in cases]
    used = [name for name in deployed() if any(name in each for each in needed)]
    rows = np.array([[call_s * each.get(name, 0.0) for name in used] for each in needed])
    found = _solve(rows / np.array([_host_s(each) for each in cases])[:, None])
    return deployed() | dict(zip(used, found, strict=True))


def step_s(case: Replayed, costs: Costs, on: DeviceModel) -> float:
    """The step on the device with these costs of the host, in the place of those that stand."""
    needed = work(case)

    def units(phase: Phase) -> float:
        return sum(costs[name] * n for name, n in needed[phase].items())

    graph = op_graph(case.case, compute_capability=on.compute_capability)
    return graph_time(case.case, graph, of_case(case.case), units, on).step_s.estimate


def _total(case: Replayed) -> Costs:
    """`work` of all phases."""
    total: Costs = {}
    for costs in work(case).values():
        for name, n in costs.items():
            total[name] = total.get(name, 0.0) + n
    return total


def _host_s(case: Replayed) -> float:
    """The measured step less what it is predicted to take beyond the host's time."""
    predicted = case.calibrated
    return case.measured_s - predicted.step_s.estimate + sum(p.host_s for p in predicted.phases)


def _solve(matrix: Numbers) -> list[float]:
    """The x ≥ 0 with the least sum of |matrix · x − 1|, by reweighted least squares."""
    by = np.ones(len(matrix))
    x = np.zeros(matrix.shape[1])
    for _ in range(ROUNDS):
        x = _not_negative(matrix * by[:, None], by)
        by = 1 / np.sqrt(np.maximum(np.abs(matrix @ x - 1), LEAST_ERROR))
    return [float(each) for each in x]


def _not_negative(matrix: Numbers, right: Numbers) -> Numbers:
    """Least squares, leaving out what comes out below nought."""
    used = list(range(matrix.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(matrix[:, used], right, rcond=None)
        if (found >= 0).all():
            x = np.zeros(matrix.shape[1])
            x[used] = found
            return x
        used = [column for column, each in zip(used, found, strict=True) if each > 0]
