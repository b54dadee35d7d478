"""What `layout` plans, tables and concludes from known figures."""

import pytest

from peakward.studies import layout
from peakward.studies.layout import BASES, PIECES
from peakward.studies.pieces import MAX_STEPS


@pytest.fixture
def made(setting, gathered):
    def make(device="cpu", scope="small", **options):
        here = setting(scope, device)
        return layout.STUDY.parts(gathered(layout.STUDY, here, **options), here)

    return make


def test_what_it_says(made):
    said = [each.text for each in made().conclusions]
    assert said[0] == (
        "matmul-operands of 768 in fp32: strided columns takes 2.00× the time of NN "
        "(1.97× to 2.03× within one process of each)."
    )
    assert (
        "addition of 2048 in fp32: one transposed (copied) takes 0.250× the time of one transposed "
        "(0.246× to 0.254× within one process of each)."
    ) in said
    assert (
        "Of 14 operations on a matrix 11 are views of it. Copies: 2 (reshape of transposed, contiguous of "
        "transposed); refused: 1 (view of transposed)."
    ) in said
    assert said[-2] == (
        "projection of 512 × 768 in fp32: separate takes 2.00× the time of packed "
        "(1.97× to 2.03× within one process of each)."
    )


def test_layouts_that_cost_nothing_are_not_called_slower(made):
    said = [each.text for each in made().conclusions]
    attention = [each for each in said if "attention of permuted heads takes" in each]
    assert attention and all("not told apart" in each for each in attention)


def test_of_nothing_nothing_is_said(made):
    assert made(overrule=lambda case: "crashed").conclusions == ()


def test_bases_are_pieces():
    for subject, bases in BASES.items():
        assert set(bases) <= set(PIECES[subject])


def test_views_are_run_once_and_all_else_is_timed(setting):
    plan = layout.STUDY.plan(setting("small", "cpu"))
    steps = {case.subject == "view": protocol.max_steps for case, protocol in plan}
    assert steps == {True: 1, False: MAX_STEPS}


def test_each_piece_stands_against_the_plain_layout_of_its_work(made, rows):
    operands, addition, heads, projection, _ = made().tables
    over = {row["layout"]: row["over the first"] for row in rows(addition)}
    assert over["contiguous"] == 1
    assert over["one transposed"] == pytest.approx(8)
    over = {row["layout"]: row["over the first"] for row in rows(heads)}
    assert over["scores of permuted heads"] == pytest.approx(1.25)
    assert over["attention of heads first"] == 1
    assert len(operands.rows) == 8 and len(projection.rows) == 3


def test_views_are_told_apart(made, rows):
    table = made().tables[-1]
    results = {(row["operation"], row["of a matrix that is"]): row["result"] for row in rows(table)}
    assert results["view", "contiguous"] == "view"
    assert results["view", "transposed"] == "refused by torch"
    assert results["reshape", "transposed"] == "copy"
