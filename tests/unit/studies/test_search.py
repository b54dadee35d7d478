"""The search against a boundary that is known, and how many probes it takes."""

from types import SimpleNamespace

import pytest

from peakward.studies.search import largest, linear_guess


class Boundary:
    """Values up to `most` fit; `odd` values answer with a status of their own."""

    def __init__(self, most: int, odd: dict[int, str] | None = None) -> None:
        self.most, self.odd, self.asked = most, odd or {}, []

    def __call__(self, value: int):
        self.asked.append(value)
        status = self.odd.get(value) or ("ok" if value <= self.most else "oom")
        return SimpleNamespace(status=status, id=f"at {value}")


@pytest.mark.parametrize("most", [1, 2, 3, 7, 8, 63, 64, 100, 999, 1000])
@pytest.mark.parametrize("guess", [1, 5, 64, 1000])
def test_an_exact_search_finds_the_boundary_from_any_guess(most, guess):
    probe = Boundary(most)
    bracket = largest(probe, guess=guess, granule=1, upper=1000, tolerance=0.0)
    assert bracket.fits == most
    assert bracket.too_large == (most + 1 if most < 1000 else None)
    assert len(probe.asked) == len(set(probe.asked)), "no value is probed twice"


@pytest.mark.parametrize("most", [40, 333, 5000])
def test_the_ends_lie_within_the_tolerance(most):
    bracket = largest(Boundary(most), guess=100, granule=1, upper=10**6, tolerance=1 / 8)
    assert bracket.fits <= most < bracket.too_large
    assert bracket.too_large - bracket.fits <= max(1, bracket.fits / 8)


def test_a_good_guess_takes_two_probes():
    probe = Boundary(1020)
    largest(probe, guess=1000, granule=1, upper=10**6, tolerance=1 / 16)
    assert len(probe.asked) == 2


def test_values_are_multiples_of_the_granule_within_the_upper_bound():
    probe = Boundary(10**9)
    bracket = largest(probe, guess=100, granule=64, upper=1000, tolerance=1 / 8)
    assert all(value % 64 == 0 and 0 < value <= 1000 for value in probe.asked)
    assert (bracket.fits, bracket.too_large) == (960, None)


def test_nothing_fits():
    bracket = largest(Boundary(0), guess=37, granule=1, upper=100, tolerance=1 / 8)
    assert (bracket.fits, bracket.too_large, bracket.stopped) == (0, 1, None)
    assert [each.id for each in bracket.proofs] == ["at 1"]


def test_proofs_are_the_two_ends():
    bracket = largest(Boundary(10), guess=10, granule=1, upper=100, tolerance=0.0)
    assert [each.id for each in bracket.proofs] == ["at 10", "at 11"]


def test_a_crash_ends_the_search_with_what_is_known():
    bracket = largest(Boundary(100, {16: "crashed"}), guess=8, granule=1, upper=99, tolerance=1.0)
    assert (bracket.fits, bracket.too_large, bracket.stopped) == (8, None, "crashed")


def test_a_probe_that_was_not_run_ends_the_search():
    bracket = largest(lambda value: None, guess=8, granule=1, upper=99, tolerance=1.0)
    assert (bracket.fits, bracket.too_large, bracket.stopped) == (0, None, "not run")
    assert bracket.proofs == ()


def test_the_guess_is_where_the_line_reaches_the_limit():
    assert linear_guess([(2.0, 30.0), (1.0, 20.0)], 60.0) == pytest.approx(5.0)


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(1.0, 5.0), (2.0, 5.0)]])
def test_no_line_no_guess(points):
    assert linear_guess(points, 60.0) is None
