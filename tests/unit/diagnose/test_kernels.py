"""Parts of the time that belong to kernels, ranges and operators."""

import pytest

from peakward.diagnose.kernels import (
    PYTHON_SHARE,
    all_work,
    chosen,
    dispatch_parts,
    of_operators,
    of_ranges,
    parts,
    shown,
)
from peakward.diagnose.time_parts import time_parts
from peakward.records.profile import RangeWork

from .rules.made import MS, given, kernel, of_host, operator, path, profile

SEEN = profile(
    kernel("a", 60),
    kernel("b", 20),
    kernel("b", 20, phase="backward"),
    kernel("softmax", 10, "softmax"),
)
TIME = time_parts(SEEN, n_steps=1, step_s=None)


def test_all_work_is_everything_that_ran():
    assert sum(all_work(TIME).values()) == pytest.approx(0.11)


def test_parts_are_by_phase_and_name():
    backward = chosen(SEEN, lambda each: each.phase == "backward")
    assert parts(TIME, backward) == {"work.backward.b": pytest.approx(0.02)}


def test_an_operator_is_a_share_of_the_kernels_of_its_category():
    found = of_operators(TIME, SEEN, (operator("aten::addmm", "2×2", 50),))
    assert "work.forward.softmax" not in found
    assert sum(found.values()) == pytest.approx(0.05)
    assert found["work.forward.a"] == pytest.approx(0.03)


def test_an_operator_of_no_such_category_is_a_share_of_all():
    found = of_operators(TIME, SEEN, (operator("aten::gelu", "2×2", 11),))
    assert found["work.forward.softmax"] == pytest.approx(0.001)
    assert sum(found.values()) == pytest.approx(0.011)


def test_an_operator_is_never_more_than_its_kernels():
    found = of_operators(TIME, SEEN, (operator("aten::mm", "2×2", 999),))
    assert sum(found.values()) == pytest.approx(0.1)


def test_a_range_is_a_share_of_the_kernels_of_its_phase_and_category():
    inside = RangeWork(
        name="peakward::attention.scores",
        direction="forward",
        category="matmul",
        n=1,
        total_ns=40 * MS,
    )
    found = of_ranges(TIME, SEEN, (inside,))
    assert found == {
        "work.forward.a": pytest.approx(0.03),
        "work.forward.b": pytest.approx(0.01),
    }


def test_evidence_is_of_one_step_where_steps_are_known():
    ((a_step, *_), (in_all, *_)) = (shown(SEEN, SEEN.kernels, n) for n in (2, None))
    assert (a_step.value, in_all.value) == (pytest.approx(0.03), pytest.approx(0.06))
    assert a_step.stored == "profile kernels[0].total_ns"


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
