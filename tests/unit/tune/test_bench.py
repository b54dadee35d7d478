"""What a search and a proof reckon with."""

import pytest

from peakward.tune.bench import Bench
from peakward.tune.costs import N_PROCESSES, Costs
from peakward.tune.ledger import Budget, Ledger

from .world import BASE


class Starting:
    """Tries whose latest process took so long to start."""

    def __init__(self, start_s):
        self._start_s = start_s

    def start_s(self):
        return self._start_s

    def seen_s(self, case):
        return 2.0

    def n_prepared(self):
        return 0


@pytest.mark.parametrize(("seen_s", "reckoned_s"), [(None, 1.0), (14.0, 14.0), (0.0, 0.0)])
def test_a_proof_is_reckoned_by_the_latest_start(seen_s, reckoned_s):
    costs = Costs(start_s=1.0, arm_s=1.0, compile_s=0.0)
    ledger = Ledger(Budget(60.0), reserve_s=0.0, announce=lambda stage: None)
    bench = Bench(Starting(seen_s), ledger, costs, lambda lever, case: None, "here")
    assert bench.turns_s((BASE, BASE)) == pytest.approx(N_PROCESSES * (reckoned_s + 4.0))
    assert bench.costs.arm_s == costs.arm_s
