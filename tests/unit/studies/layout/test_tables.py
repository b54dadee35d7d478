"""The tables of `layout`."""

import pytest


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
