"""What `fusion` plans, tables and concludes from known figures."""

import pytest

from peakward.records.case import MicroCase
from peakward.studies import fusion
from peakward.studies.setting import Setting


@pytest.fixture
def made(setting, gathered):
    def make(device="cpu", scope="small", **options):
        here = setting(scope, device)
        return fusion.STUDY.parts(gathered(fusion.STUDY, here, **options), here)

    return make


def test_what_it_says(made):
    said = [each.text for each in made().conclusions]
    assert said[0] == (
        "Passes over the inputs of softmax of 2048 × 2048 in fp32, each operand of a call once: three passes "
        "8, online by torch calls 12, torch 2, compiled 2; inferred from time and copy bandwidth, at most: "
        "three passes 1,000, online by torch calls 750, torch 250, compiled 250."
    )
    assert (
        "softmax of 256 × 1024 in fp32: three passes takes 4.00× the time of torch "
        "(3.94× to 4.06× within one process of each)."
    ) in said
    assert (
        "Nearest to the copy bandwidth at rms-norm of 2048 × 2048 in fp32 comes torch, with 0.800% of it."
    ) in said
    assert (
        "softmax of 2048 × 2048 in fp32: online by torch calls takes 0.750× the time of three passes "
        "(0.739× to 0.761× within one process of each)."
    ) in said
    assert said[-1] == (
        "The difference of pieces in fp32 from fp64 is from 1.00e-7 (softmax 256 × 1024, torch, fp32) to "
        "4.00e-7 (softmax 256 × 1024, three passes, fp32) of the largest value, 1.00e-7 in the median of 17 "
        "cases."
    )


def test_of_nothing_nothing_is_said(setting, gathered):
    here = setting("small", "cpu")
    assert (
        fusion.STUDY.parts(
            gathered(fusion.STUDY, here, overrule=lambda case: "oom"), here
        ).conclusions
        == ()
    )


def test_the_online_softmax_is_told_as_a_loop_and_in_one_kernel(made):
    said = [each.text for each in made("cuda", "corners").conclusions]
    where = "softmax of 4096 × 65536 in fp32"
    assert any(each.startswith(f"{where}: online by torch calls takes ") for each in said)
    assert any(each.startswith(f"{where}: online, one kernel takes ") for each in said)


def test_nearest_to_the_bandwidth_names_who_was_not_timed(made):
    found = made(
        "cuda", "corners", overrule=lambda case: "timeout" if case.piece == "peakward" else None
    )
    nearest = [each.text for each in found.conclusions if each.text.startswith("Nearest")]
    assert nearest
    assert all(" comes of those timed " in each for each in nearest)
    assert all(each.endswith("; not timed: peakward (timed out).") for each in nearest)


def test_without_a_compiler_its_pieces_are_left_out_with_the_reason(setting):
    here = setting("small", "cpu")
    bare = Setting(scope=here.scope, environment=here.environment, has_compiler=False)
    assert all(case.piece != "compiled" for case, _ in fusion.STUDY.plan(bare))
    assert [piece for piece, _, _ in fusion.absences(bare)] == [
        "peakward",
        "online, one kernel",
        "compiled",
    ]


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
