"""What `layout` plans."""

from peakward.studies import layout
from peakward.studies.layout.grid import BASES, PIECES
from peakward.studies.pieces import MAX_STEPS


def test_bases_are_pieces():
    for subject, bases in BASES.items():
        assert set(bases) <= set(PIECES[subject])


def test_views_are_run_once_and_all_else_is_timed(setting):
    plan = layout.plan(setting("small", "cpu"))
    steps = {case.subject == "view": protocol.max_steps for case, protocol in plan}
    assert steps == {True: 1, False: MAX_STEPS}
