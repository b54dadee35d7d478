"""The tables of `attention-parts`."""

import pytest

from peakward.studies import attention_parts


@pytest.fixture
def made(setting, gathered):
    def make(**options):
        here = setting()
        return attention_parts.parts(gathered(attention_parts, here, **options), here)

    return make


def test_a_row_for_each_case_and_direction(made, rows):
    found = rows(made().tables[0])
    assert len(found) == 24
    forward, backward = found[:2]
    assert (forward["direction"], backward["direction"]) == ("forward", "backward")
    assert forward["attention"] == pytest.approx(1000e-9)
    assert backward["softmax"] == pytest.approx(600e-9)
    assert forward["softmax's share"] == pytest.approx(0.3)


def test_a_case_without_memory_keeps_its_rows(made, rows):
    found = made(overrule=lambda case: "oom" if case.seq_len == 1024 else None)
    out = [row for row in rows(found.tables[0]) if row["status"] == "oom"]
    assert len(out) == 8
    assert {row["attention"] for row in out} == {None}
    # Casts have a row in bf16 alone.
    assert len(found.tables[1].rows) == 4 * 3 + 4 * 4
    assert len(found.tables[2].rows) == 8


def test_time_for_a_flop_over_the_products(made, rows):
    (first, *_) = rows(made().tables[2])
    assert first["ratio of times"] == pytest.approx(0.6)
    assert first["ratio of FLOPs"] == pytest.approx(5 / (4 * 64))
    expected = 0.6 / (5 / 256)
    assert first["time for a FLOP, over the products'"] == pytest.approx(expected)


def test_a_line_for_each_heads_and_precision(made):
    (plot,) = made().plots
    assert [len(line.points) for line in plot.series] == [3] * 4
    assert plot.series[0].name == "12 × 64, fp32"
