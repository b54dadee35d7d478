"""What `attention-parts` plans, tables and concludes from known parts."""

import msgspec
import pytest

from peakward.records.case import OperatorCase
from peakward.studies.attention_parts import STUDY, seconds, work
from peakward.studies.engine import Point, Row
from peakward.studies.scope import Scope, micro

CASE = OperatorCase(batch_size=2, n_heads=3, seq_len=5, head_dim=7, device="cpu")


@pytest.fixture
def made(setting, gathered):
    def make(**options):
        here = setting()
        return STUDY.parts(gathered(STUDY, here, **options), here)

    return make


@pytest.fixture
def profiled(profile):
    """A row whose profile has these nanoseconds by range and category, forward, over so many steps."""

    def make(ns, n_steps=1):
        found = profile(CASE, n_steps)
        ranges = tuple(
            msgspec.structs.replace(
                found.profile.ranges[0],
                name=f"peakward::attention{part}",
                direction="forward",
                category=category,
                total_ns=total_ns,
            )
            for (part, category), total_ns in ns.items()
        )
        changed = msgspec.structs.replace(found.profile, ranges=ranges)
        return Row(
            point=Point(case=CASE, protocol=None),
            profile=msgspec.structs.replace(found, profile=changed),
        )

    return make


def test_heads_by_precision_by_three_lengths(setting):
    cases = [case for case, _ in STUDY.plan(setting())]
    assert len(cases) == 12
    assert {case.precision for case in cases} == {"fp32", "bf16"}
    assert {case.seq_len for case in cases} == {128, 512, 1024}
    assert {(case.attention, case.pass_) for case in cases} == {("naive", "forward_backward")}
    assert {case.precision for case, _ in STUDY.plan(setting("small", "cpu"))} == {"fp32"}


def test_models_with_equal_heads_count_once_and_the_users_lengths_are_all(setting):
    twin = msgspec.structs.replace(micro(), name="twin", n_layers=1)
    scope = Scope("small", models=(micro(), twin), seq_lens=(16, 32))
    assert [case.seq_len for case, _ in STUDY.plan(setting(scope, "cpu"))] == [16, 32]


def test_casts_are_a_part_of_their_own(profiled):
    """Copies around the softmax and before the product of the values, of an H200 in bf16."""
    found = seconds(
        profiled(
            {
                ("", "copy"): 660,
                ("", "softmax"): 334,
                ("", "matmul"): 192,
                (".scores", "matmul"): 95,
                (".softmax", "softmax"): 334,
                (".softmax", "copy"): 443,
                (".values", "copy"): 217,
                (".values", "matmul"): 97,
            }
        )
    )
    assert found["softmax"] * 1e9 == pytest.approx(334)
    assert found["casts"] * 1e9 == pytest.approx(443 + 217)
    assert found["rest"] == 0


def test_parts_that_make_the_whole_leave_no_rest(profiled):
    """Their sum in seconds is off by the rounding of floats."""
    parts = {("", "x"): 18_633, (".scores", "matmul"): 7_502, (".softmax", "softmax"): 3_968}
    assert seconds(profiled({**parts, (".values", "matmul"): 7_163}, 3))["rest"] == 0.0


def test_a_profile_without_the_ranges_has_no_parts(profiled):
    assert seconds(profiled({})) is None


@pytest.mark.parametrize(("precision", "item"), [("fp32", 4), ("bf16", 2)])
def test_work_counts_every_multiply_add_twice_and_every_operand_once(precision, item):
    found = work(msgspec.structs.replace(CASE, precision=precision))
    queries = keys = values = result = 2 * 3 * 5 * 7
    scores = weights = 2 * 3 * 5 * 5
    assert found["score product"].flops == found["value product"].flops == 2 * scores * 7
    assert found["softmax"].flops == 5 * scores
    assert found["score product"].n_bytes == (queries + keys + scores) * item
    assert found["value product"].n_bytes == (weights + values + result) * item
    assert found["softmax"].n_bytes == (scores + weights) * 4
    assert ("casts" in found) == (item == 2)
    if "casts" in found:
        assert found["casts"].n_bytes == (scores + weights) * (item + 4)


def test_the_tables(made, rows):
    times, parts, ratios = (rows(each) for each in made().tables)
    forward, backward = times[:2]
    assert len(times) == 24
    assert (forward["direction"], backward["direction"]) == ("forward", "backward")
    assert forward["attention"] == pytest.approx(1000e-9)
    assert forward["rest"] == pytest.approx(50e-9)
    assert backward["softmax"] == pytest.approx(600e-9)
    assert forward["softmax's share"] == pytest.approx(0.3)
    assert [row["part"] for row in parts[:3]] == ["score product", "softmax", "value product"]
    assert parts[0]["rate"] == pytest.approx(parts[0]["FLOPs"] / 200e-9)
    assert parts[1]["bandwidth"] == pytest.approx(parts[1]["bytes"] / 300e-9)
    assert ratios[0]["ratio of times"] == pytest.approx(0.6)
    assert ratios[0]["time for a FLOP, over the products'"] == pytest.approx(0.6 / (5 / 256))


def test_a_case_without_memory_keeps_its_rows_and_the_next_shorter_is_told(made, rows):
    found = made(overrule=lambda case: "oom" if case.seq_len == 1024 else None)
    out = [row for row in rows(found.tables[0]) if row["status"] == "oom"]
    assert len(out) == 8 and {row["attention"] for row in out} == {None}
    # Casts have a line in bf16 alone.
    assert len(found.tables[1].rows) == 4 * 3 + 4 * 4
    assert len(found.tables[2].rows) == 8
    assert all("over 4 × 512" in each.text for each in found.conclusions)


def test_a_line_for_each_heads_and_precision(made):
    (plot,) = made().plots
    assert [len(line.points) for line in plot.series] == [3] * 4
    assert plot.series[0].name == "12 × 64, fp32"


def test_the_softmaxs_share_and_its_time_for_a_flop(made):
    said = [each.text for each in made().conclusions]
    assert len(said) == 8
    assert said[0] == (
        "Of the time of attention of 12 heads of 64 over 4 × 1024 in fp32: softmax forward 30.0%, softmax "
        "backward 30.0%, scale and mask forward 15.0%."
    )
    assert "casts forward 0%, casts backward 0%" in said[1]
    assert said[4] == (
        "The softmax against both products in attention of 12 heads of 64 over 4 × 1024 in fp32: ratio of "
        "times 0.600×, ratio of FLOPs 0.0195×, time for a FLOP, over the products' 30.7×."
    )
    assert "The softmax, without its casts, against" in said[5]


def test_nothing_ran_nothing_said(made):
    assert made(overrule=lambda case: "crashed").conclusions == ()
