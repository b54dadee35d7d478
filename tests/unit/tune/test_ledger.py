"""Time allowed, time left."""

from peakward.tune.ledger import Budget


def test_allows_what_fits_beside_the_reserve():
    now = iter([100.0, 105.0, 105.0, 105.0])
    budget = Budget(10.0, clock=lambda: next(now))
    assert budget.spent_s() == 5.0
    assert budget.allows(3.0, reserve_s=2.0)
    assert not budget.allows(3.1, reserve_s=2.0)
