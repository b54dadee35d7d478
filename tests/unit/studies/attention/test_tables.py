"""The tables of `attention`."""

import pytest

from peakward.studies import attention


@pytest.fixture
def made(setting, gathered):
    def make(scope="corners", device="cuda", **options):
        here = setting(scope, device)
        return attention.parts(gathered(attention, here, **options), here)

    return make


def by_arm(rows, seq_len):
    return {row["attention"]: row for row in rows if row["length"] == seq_len}


def test_a_row_for_every_arm_with_its_reason(made, rows):
    tables = made().tables
    assert [each.title for each in tables] == [
        "Attention, fp32, head dim 16",
        "Attention, fp32, head dim 128",
        "Attention, bf16, head dim 16",
        "Attention, bf16, head dim 128",
        "Exponents in the length",
        "Naive attention, forward and backward, under memory limits",
    ]
    found = by_arm(rows(tables[0]), 4096)
    assert len(found) == 11
    assert found["flash-hopper"]["forward (95% interval)"] == "not available"
    assert found["flash-hopper"]["reason"] == "flash-hopper needs a type of 16 bits, got fp32"
    naive = found["naive"]
    assert naive["of it the probability matrix"] == pytest.approx(4096 / (4096 + 16))
    assert naive["reason"] is None
    assert found["flash"]["of it the probability matrix"] is None
    assert found["flash"]["held for backward"] == 8 * 4096 * 16 * 4


def test_what_ran_out_keeps_its_row(made, rows):
    def overrule(case):
        return "oom" if case.seq_len == 16384 and case.pass_ == "backward" else None

    found = by_arm(rows(made(overrule=overrule).tables[0]), 16384)["naive"]
    assert found["forward (95% interval)"] != "oom"
    assert found["backward (95% interval)"] == "oom"
    assert found["reason"] == "because oom"
    assert found["held for backward"] is None


def test_exponents_are_told_with_their_intervals(made, rows):
    growth = next(each for each in made().tables if each.title.startswith("Exponents"))
    naive = rows(growth)[0]
    assert naive["forward time (95% interval)"] == "2.00 (2.00 to 2.00)"
    assert naive["held for backward"] == "1.98"


def test_a_limit_tells_both_sides(made, rows):
    (first, *_) = rows(made().tables[-1])
    assert (first["longest that fits"], first["shortest that does not"]) == (4096, 16384)
    assert first["status"] == "oom"
