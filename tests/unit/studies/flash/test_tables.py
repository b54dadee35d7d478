"""The tables of `flash`."""

from peakward.studies import flash


def test_a_table_for_each_type_head_and_pass_a_row_for_each_arm(read_flash, rows):
    here, readings = read_flash()
    tables = flash.parts(readings, here).tables
    assert len(tables) == 2 * 2 * 3
    assert tables[0].title == "Attention, bf16, head dim 64, forward"
    found = {row["attention"]: row for row in rows(tables[6]) if row["length"] == 4096}
    assert len(found) == 10
    assert found["flash"]["status"] == "ok"
    assert found["sdpa-cudnn"]["status"] == "not available"
    assert found["sdpa-cudnn"]["reason"].endswith("got float32, not a type of 16 bits")
    assert found["sdpa-cudnn"]["rate"] is None


def test_what_ran_out_keeps_its_row(read_flash, rows):
    here, readings = read_flash(
        overrule=lambda case: "oom" if (case.attention, case.seq_len) == ("naive", 65536) else None
    )
    found = [
        row
        for table in flash.parts(readings, here).tables
        for row in rows(table)
        if row["status"] == "oom"
    ]
    assert len(found) == 2 * len(flash.parts(readings, here).tables)
    assert {row["reason"] for row in found} == {"because oom"}
