"""Idle time on the way to the next launch, split in two."""

import pytest

from peakward.diagnose.launching import PYTHON_SHARE, dispatch_parts

from .rules.made import given, of_host, path, profile


@pytest.mark.parametrize(("python", "taken"), [(90, 0.9), (60, 0.6), (59, 0.0)])
def test_python_counts_where_it_is_most_of_the_hosts_path(python, taken):
    found = dispatch_parts(
        given(
            profile(
                idle={"host_bound": 80, "launch_latency": 20},
                path=path(host=python, operator=90 - python, call=10, compute=50),
            )
        )
    )
    assert found.python_share == pytest.approx(python / 100)
    assert sum(found.python.values()) == pytest.approx(0.1 * taken)
    assert sum(found.python.values()) + sum(found.operators.values()) == pytest.approx(0.1)
    assert PYTHON_SHARE == 0.6


def test_without_a_path_all_of_it_is_dispatch():
    found = dispatch_parts(given(profile(idle={"host_bound": 80})))
    assert found.python_share is None
    assert sum(found.operators.values()) == pytest.approx(0.08)


def test_the_host_has_no_idle_time():
    assert dispatch_parts(given(of_host())) is None
