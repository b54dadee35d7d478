"""Small pieces of code: how long they are run, and the figures read off them."""

import pytest

from peakward.records.case import MicroCase
from peakward.studies import fusion, pieces
from peakward.studies.engine import view
from peakward.studies.pieces import MAX_STEPS
from peakward.studies.readings import Readings
from peakward.studies.scope import Scope


def case(piece="torch", **fields):
    given = {"subject": "softmax", "device": "cuda", "sizes": (10, 100)} | fields
    return MicroCase(piece=piece, **given)


@pytest.fixture
def rows_of(measure, setting, calibration):
    """The rows of cases; of those that are not None here, with a measurement by the formula."""

    def make(cases, factor=1.0, status="ok"):
        here = setting()
        points = pieces.pieces(cases, pieces.protocol(here))
        made = (measure(*each.planned, here.environment, status, factor=factor) for each in points)
        readings = Readings(made if status != "not run" else ())
        readings.calibration = calibration("cuda")
        return view(points, readings, here)

    return make


def test_a_piece_is_run_for_as_long_as_its_scope_says(setting):
    small, large, asked = (
        pieces.protocol(setting(scope))
        for scope in ("small", "corners", Scope("small", max_timed_s=2.0))
    )
    assert (small.max_timed_s, large.max_timed_s, asked.max_timed_s) == (0.25, 1.0, 2.0)
    assert small.max_steps == large.max_steps == MAX_STEPS


def test_figures_of_a_piece(rows_of):
    (found,) = rows_of([case("three passes")]).rows
    assert fusion.passes(found) == 8
    assert pieces.bytes_per_s(found) == pytest.approx(2 * 4000 / 4e-6)
    assert pieces.flops_per_s(found) == pytest.approx(2000 / 4e-6)
    # 10^12 bytes a second copy 4 µs × 10^12 bytes meanwhile, of 4,000 bytes of input.
    assert fusion.passes_at_copy(found) == pytest.approx(1000)


@pytest.mark.parametrize("status", ["oom", "not run"])
def test_of_a_piece_that_failed_nothing_is_known(rows_of, status):
    (found,) = rows_of([case()], status=status).rows
    reads = (
        fusion.passes,
        fusion.passes_at_copy,
        fusion.copy_share,
        pieces.bytes_per_s,
        pieces.flops_per_s,
        pieces.moved_bytes,
        pieces.difference,
    )
    assert {read(found) for read in reads} == {None}


def test_groups_are_of_what_computes_the_same(rows_of):
    four = [case("torch"), case("online"), case("torch", precision="bf16"), case("compiled")]
    groups = pieces.groups(rows_of(four).rows)
    assert [[row.name for row in group] for group in groups] == [
        ["torch", "online by torch calls", "compiled"],
        ["torch"],
    ]


def test_a_share_over_100_percent_is_flagged(rows_of):
    flagged = [
        [note for note in fusion.notes(rows_of([case()], factor=factor)) if "over 100%" in note]
        for factor in (1e-6, 1.0)
    ]
    (note,), none = flagged
    assert note.startswith("A share over 100% (softmax 10 × 100): ")
    assert none == []
