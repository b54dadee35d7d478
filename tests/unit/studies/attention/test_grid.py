"""The grid of `attention`."""

from peakward.studies import attention
from peakward.studies.attention.grid import curves, groups, plan, read
from peakward.studies.readings import Readings
from peakward.studies.scope import Scope


def test_the_corners_are_the_ends_of_the_full_grid(setting):
    corners, full = ([case for case, _ in plan(setting(name))] for name in ("corners", "full"))
    for field in ("head_dim", "seq_len"):
        few, all_ = ({getattr(case, field) for case in cases} for cases in (corners, full))
        assert few < all_
        assert (min(few), max(few)) == (min(all_), max(all_))
    assert {case.batch_size for case in full} == {8}
    assert {case.n_heads for case in full} == {1}
    assert {case.head_dim for case in full} == {16, 32, 64, 128}
    assert {case.seq_len for case in full} == {256, 1024, 4096, 8192, 16384}


def test_every_arm_has_a_row_and_only_what_runs_is_planned(setting):
    here = setting()
    cells = read(Readings(), here)
    by_group = [[cell.arm.name for cell in group] for group in groups(cells)]
    fp32, bf16 = by_group[0], by_group[-1]
    assert len(fp32) == 11 * 3
    assert len(bf16) == 10 * 3
    assert "compiled, tf32" in fp32
    cases = [case for case, _ in plan(here)]
    assert {case.attention for case in cases if case.precision == "fp32"} == {
        *("naive", "sdpa", "sdpa-efficient", "sdpa-math", "flex", "flash"),
    }
    hopper = [case for case in cases if case.attention == "flash-hopper"]
    assert {case.head_dim for case in hopper} == {128}


def test_a_cpu_runs_what_it_can(setting):
    cases = [case for case, _ in plan(setting("small", "cpu"))]
    assert {(case.attention, case.pass_) for case in cases} == {
        *(("naive", "forward"), ("naive", "backward")),
        *(("sdpa", "forward"), ("sdpa", "backward")),
        ("flex", "forward"),
    }


def test_the_users_lengths_and_batch_size(setting):
    cases = [case for case, _ in plan(setting(Scope("corners", seq_lens=(64,), batch_size=2)))]
    assert {(case.seq_len, case.batch_size) for case in cases} == {(64, 2)}


def test_curves_go_by_length(setting):
    found = curves(read(Readings(), setting()))
    assert {tuple(cell.seq_len for cell in curve) for curve in found} == {(256, 4096, 16384)}


def test_the_matrix_is_naives_alone(setting, gathered):
    here = setting()
    for cell in read(gathered(attention, here), here):
        assert (cell.matrix_share is not None) == (cell.arm.name == "naive")
        item = 4 if cell.precision == "fp32" else 6
        assert cell.matrix_bytes == 8 * cell.seq_len**2 * item
