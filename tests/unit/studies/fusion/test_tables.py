"""The tables of `fusion`."""

import pytest

from peakward.records.case import MicroCase


def test_each_subject_has_a_table_of_its_pieces(made, rows):
    softmax, norm, loss, left_out = made().tables
    assert (softmax.title, norm.title, loss.title) == ("softmax", "rms-norm", "cross-entropy")
    first = rows(softmax)[0]
    assert (first["piece"], first["operands' passes"], first["counted by"]) == (
        "three passes",
        8,
        "operators",
    )
    assert first["operands' bytes"] == 8 * 4 * 256 * 1024
    # 4 bytes an element take 4 ns, in which a copy's 10^12 bytes a second are 4,000.
    assert first["passes at the copy's bandwidth"] == pytest.approx(1000)
    assert first["bandwidth"] == pytest.approx(2e9)
    assert first["share of the copy's"] == pytest.approx(2e9 / 1e12)
    assert first["difference from fp64"] == pytest.approx(4e-7)
    assert len(rows(norm)) == 6 and len(rows(loss)) == 3
    assert [row["piece"] for row in rows(left_out)] == ["peakward", "online, one kernel"]


def test_on_a_gpu_nothing_is_left_out(made, rows):
    found = made("cuda", "corners")
    assert found.tables[-1].rows == ()
    pieces = {row["piece"] for row in rows(found.tables[0])}
    assert pieces == {
        "three passes",
        "online by torch calls",
        "online, one kernel",
        "torch",
        "compiled",
        "peakward",
    }
    assert {row["precision"] for row in rows(found.tables[0])} == {"fp32", "bf16"}


def test_what_ran_out_of_memory_keeps_its_row_and_is_not_compared(made, rows):
    def overrule(case: MicroCase):
        return "oom" if case.piece == "three passes" else None

    found = made(overrule=overrule)
    assert [row["status"] for row in rows(found.tables[0])].count("oom") == 2
    assert not any("three passes takes" in each.text for each in found.conclusions)
