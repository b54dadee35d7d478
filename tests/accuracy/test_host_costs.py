"""The refit of the host's costs against the form that it is of."""

import msgspec
import pytest

from accuracy import host_costs
from accuracy.seen import FITTED_ON

from .conftest import SITES

pytestmark = pytest.mark.full  # They predict every stored measurement again.

CALL_S = 7e-6


@pytest.fixture(scope="module")
def host(now):
    return [each for each in now if each.calibrated.bound == "host" and host_costs.covered(each)]


def test_with_the_constants_as_they_stand_it_is_the_prediction(host):
    on = SITES[FITTED_ON].calibrated
    assert host
    for each in host:
        same = host_costs.step_s(each, host_costs.deployed(), on)
        assert same == pytest.approx(each.calibrated.step_s.estimate)


def made_of(case, costs):
    """The case as it would have been measured, if the host's costs were these."""
    beyond_s = case.calibrated.step_s.estimate - sum(p.host_s for p in case.calibrated.phases)
    host_s = CALL_S * sum(
        costs[name] * n for phase in host_costs.work(case).values() for name, n in phase.items()
    )
    return msgspec.structs.replace(case, measured_s=beyond_s + host_s)


TRUE = {
    "an operator": 2.0,
    "a block forward": 10.0,
    "a block backward": 40.0,
    "an optimiser's step": 200.0,
    "a tensor of it": 3.0,
}


def test_a_fit_finds_the_costs_that_made_the_steps(host):
    found = host_costs.fit([made_of(each, TRUE) for each in host], CALL_S)
    assert found == pytest.approx(TRUE, rel=1e-6)


def test_a_few_slow_steps_do_not_set_the_costs(host):
    made = [made_of(each, TRUE) for each in host]
    slow = [
        msgspec.structs.replace(each, measured_s=1.5 * each.measured_s) if i % 8 == 0 else each
        for i, each in enumerate(made)
    ]
    assert host_costs.fit(slow, CALL_S) == pytest.approx(TRUE, rel=0.05)


def test_what_no_case_needs_stays(host):
    forward = [each for each in host if each.case.workload.pass_ == "forward"]
    found, as_it_stands = host_costs.fit(forward, CALL_S), host_costs.deployed()
    for name in ("a block backward", "an optimiser's step", "a tensor of it"):
        assert found[name] == as_it_stands[name]
