"""Everything at once, on traces that Peakward recorded."""

import numpy as np
import pytest

import peakward as pw
from peakward.records.errors import PeakwardError
from peakward.traces.trace import Trace, compare

from . import real
from .handmade import Gpu, Host, table
from .own import COMPILED, GRAPHS


@pytest.fixture(scope="module")
def compiled():
    return Trace.open(COMPILED)


def test_the_package_opens_a_trace():
    assert isinstance(pw.trace(str(GRAPHS)), Trace)


def test_the_parts_of_a_profile_agree_with_one_another(compiled):
    found = compiled.profile()
    duration_ns = int(compiled.table.gpu.duration_ns.sum())
    for groups in (found.phases, found.categories, found.kernels, compiled.kernels()):
        assert sum(each.total_ns for each in groups) == duration_ns
        assert sum(each.n for each in groups) == len(compiled.table.gpu)
    assert found.idle.together.idle_ns == found.breakdown.together.idle_ns
    assert sum(found.idle.together.by_cause_ns.values()) == found.breakdown.together.idle_ns


def test_kernels_of_a_compiled_step_are_told_apart_by_phase_and_category(compiled):
    found = compiled.profile()
    assert {each.phase for each in found.phases} == {"forward", "backward", "optimizer"}
    fused = [each for each in found.categories if each.name == "optimizer"]
    assert [each.phase for each in fused] == ["optimizer"]
    # 12 layers, forward once each.
    forward = [
        each for each in found.categories if (each.name, each.phase) == ("attention", "forward")
    ]
    assert [each.n for each in forward] == [12]
    assert found.unnamed_share == 0
    assert found.incomplete == ()


def test_a_compiled_kernel_names_the_operators_it_fuses(compiled):
    (found,) = [
        each
        for each in compiled.kernels()
        if each.name.startswith("triton_poi_fused__unsafe_view_cat_mul_silu_silu_backward")
    ]
    assert found.fused == ("_unsafe_view", "cat", "mul", "silu", "silu_backward", "split", "view")


def test_a_captured_step_is_counted_kernel_by_kernel_and_called_incomplete():
    found = Trace.open(GRAPHS).profile()
    assert found.n_steps == 3
    per_step = found.breakdown.together.n_compute / 3
    assert per_step == int(per_step) > 300
    # The copies of the batch stand outside the graph.
    assert [(each.phase, each.n) for each in found.phases] == [("other", 1539), ("forward", 6)]
    (said,) = found.incomplete
    assert "launched as graphs outside any phase" in said


def test_a_phase_is_a_part_of_the_whole(compiled):
    whole = {each.name: each.total_ns for each in compiled.profile().phases}
    for phase, total_ns in whole.items():
        part = compiled.profile(phase=phase)
        assert sum(each.total_ns for each in part.kernels) == total_ns
        assert part.selection == f"the phase {phase}"
        assert part.idle is None


def test_ranges_hold_what_was_launched_inside_them(compiled):
    ranges = compiled.profile(range_name="optimizer")
    assert ranges.kernels == compiled.profile(phase="optimizer").kernels


def test_a_range_that_is_not_there_is_refused_with_some_that_are(compiled):
    with pytest.raises(PeakwardError, match=r"got 'forwards': it has .* among them '"):
        compiled.profile(range_name="forwards")


def test_two_ranks_of_one_job_are_compared():
    ranks = [Trace(real.real(name)) for name in (real.RANK_0, real.RANK_1)]
    assert [each.overlap()[0].n for each in ranks] == [10, 10]
    found = compare(ranks)
    assert [each.compute_ns for each in found.ranks] == [210_320_000, 271_973_000]
    assert [each.communication_ns for each in found.ranks] == [396_199_000, 379_053_000]
    assert found.n_collectives == 10
    assert sum(each.n_last for each in found.ranks) == found.n_collectives


def test_many_devices_of_a_trace_are_as_much_work_as_one(monkeypatch):
    """Counted in the entries that are sorted: 1,000 devices once went over all rows each."""
    n_sorted = 0

    def counted(sort):
        def sort_counted(keys, *arguments, **options):
            nonlocal n_sorted
            n_sorted += np.size(keys)
            return sort(keys, *arguments, **options)

        return sort_counted

    def entries(n_devices: int, n_rows: int = 1200) -> int:
        nonlocal n_sorted
        of_trace = Trace.of(
            table(
                [
                    Gpu(10 * n, 10 * n + 6, device=n % n_devices, correlation=n + 1)
                    for n in range(n_rows)
                ],
                [Host(10 * n - 4, 10 * n - 3, correlation=n + 1) for n in range(1, n_rows)],
            )
        )
        n_sorted = 0
        of_trace.profile()
        return n_sorted

    for name in ("lexsort", "argsort", "sort"):
        monkeypatch.setattr(np, name, counted(getattr(np, name)))
    assert entries(100) < 1.5 * entries(1)
