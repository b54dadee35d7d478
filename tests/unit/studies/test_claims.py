"""Claims that several studies make, and the sentences they are written in."""

import math

import msgspec
import pytest

from peakward.models.presets import model
from peakward.records.case import MicroCase, OperatorCase
from peakward.records.measurement import Interval, Protocol
from peakward.studies.cases import model_case, with_levers
from peakward.studies.claims import Sentence, compared, extremes, gains, longer, not_timed, rank
from peakward.studies.engine import Point, Row
from peakward.studies.values import MEDIAN

RELATIVE_LOW = math.exp(-math.hypot(math.log(0.99), math.log(1.01)))
"""Of a ratio of two medians, each known to 1%."""


@pytest.fixture
def source(measure, setting):
    case = MicroCase(subject="softmax", piece="torch", sizes=(10, 100), device="cuda")
    return measure(case, Protocol(), setting().environment, serial=7)


@pytest.fixture
def piece(measure, setting):
    def make(name="torch", factor=1.0, status="ok"):
        case = MicroCase(subject="softmax", piece=name, sizes=(10, 100), device="cuda")
        point = Point(case=case, protocol=Protocol(), name=name)
        made = measure(case, Protocol(), setting().environment, status, name, factor)
        return Row(point=point, measurement=made)

    return make


def test_a_sentence_prints_its_numbers_and_keeps_them(source):
    told = Sentence()
    (said,) = told.end(
        f"It takes {told('time', 0.25, 's', source)}, {told('part', 0.5, 'share')} of all."
    )
    assert said.text == "It takes 250 ms, 50.0% of all."
    assert [(each.quantity, each.value, each.unit) for each in said.evidence] == [
        ("time", 0.25, "s"),
        ("part", 0.5, "share"),
    ]
    assert said.evidence[0].from_ids == (source.id,)


def test_a_number_that_is_said_twice_is_kept_once(source):
    told = Sentence()
    (said,) = told.end(
        f"{told('n', 2, 'count', source)} of {told('n', 2, 'count', source, None, source)}"
    )
    assert [each.from_ids for each in said.evidence] == [(source.id,)]


def test_a_number_that_is_not_known_leaves_the_sentence_out(source):
    told = Sentence()
    assert not list(told.end(f"It takes {told('time', None, 's', source)}."))
    told = Sentence()
    assert not list(told.end(f"It takes {told.range('time', None, 's', source)}."))


def test_a_range_is_of_both_ends(source):
    told = Sentence()
    found = Interval(estimate=2.0, low=1.0, high=4.0)
    (said,) = told.end(told.range("speed", found, "ratio", source))
    assert said.text == "1.00× to 4.00×"
    assert [each.quantity for each in said.evidence] == ["speed, low end", "speed, high end"]


def test_ends_that_three_figures_do_not_tell_apart_have_more(source):
    told = Sentence()
    found = Interval(estimate=1.0634, low=1.0611, high=1.0648)
    (said,) = told.end(told.interval("exponent", found, "count", source))
    assert said.text == "1.063 (1.061 to 1.065)"


def test_a_row_that_is_its_own_base_has_no_ratio(piece):
    row = piece()
    assert row.against(row).speed is row.against(row).over_base is None
    assert row.against(piece("numpy")).speed is not None


def test_a_comparison_gives_the_interval_that_tables_show_too(piece, figures):
    slow, fast = piece("three passes"), piece("torch")
    (said,) = compared("here", slow, fast)
    assert said.text == (
        "here: three passes takes 4.00× the time of torch (3.94× to 4.06× within one process of each)."
    )
    found = figures(said)
    ratio = longer(fast, slow)
    assert found["time over time, low end"] == ratio.low == pytest.approx(3.943, abs=1e-3)
    assert found["time over time, high end"] == ratio.high == pytest.approx(4.057, abs=1e-3)


def test_where_intervals_overlap_none_is_called_slower(piece):
    (said,) = compared("here", piece("compiled", 1.01), piece("torch"))
    assert said.text == (
        "here: compiled takes 1.01× the time of torch, not told apart by intervals within one process of "
        "each."
    )


def test_nothing_is_compared_with_what_failed(piece):
    assert not list(compared("here", piece(status="oom"), piece("online")))
    assert not list(compared("here", None, piece("online")))


def test_the_extremes_of_a_value_name_their_rows_and_all_sources(piece):
    def told(*rows):
        return [
            (each.text, [proof.value for proof in each.evidence])
            for each in extremes(
                "A step takes", MEDIAN, rows, of="in all", behind=lambda row: (row.measurement,)
            )
        ]

    slow, quick, failed = piece("numpy", 4.0), piece(), piece("online", status="oom")
    ((text, values),) = told(slow, quick, failed)
    assert text == (
        "A step takes from 1.00 µs (softmax 10 × 100, torch, fp32) to 8.00 µs "
        "(softmax 10 × 100, numpy, fp32) in all, 4.50 µs in the median of 2 cases."
    )
    assert values == pytest.approx([1e-6, 8e-6, 4.5e-6, 2])
    assert [text for text, _ in told(quick)] == [
        "A step takes 1.00 µs in all (softmax 10 × 100, torch, fp32)."
    ]
    assert told(failed) == []
    ((text, values),) = told(quick, quick)
    assert text == "A step takes 1.00 µs in all in each of 2 cases."
    assert values == pytest.approx([1e-6, 1e-6, 1e-6, 2])


@pytest.fixture
def rival(measure, setting):
    def make(name, median_s=1.0, status="ok", **changes):
        case = OperatorCase(
            batch_size=1, n_heads=1, seq_len=128, head_dim=64, pass_="forward", device="cuda"
        )
        found = measure(case, Protocol(), setting().environment, status=status)
        if status == "ok":
            median = Interval(estimate=median_s, low=0.9 * median_s, high=1.1 * median_s)
            summary = msgspec.structs.replace(found.summary, median_s=median)
            found = msgspec.structs.replace(found, summary=summary)
        found = None if status == "not run" else msgspec.structs.replace(found, **changes)
        return Row(point=Point(case=case, protocol=Protocol(), name=name), measurement=found)

    return make


def test_with_all_timed_the_first_is_the_fastest(rival):
    found = rank([rival("slow", 2.0), rival("near", 1.1), rival("quick", 1.0)])
    assert [each.name for each in found.timed] == ["quick", "near", "slow"]
    assert [each.name for each in found.near] == ["near"]
    assert (found.title, found.absent) == ("the fastest", "")


def test_the_absent_are_named_once_each_with_their_reason(rival):
    other = rival("other GPU's", status="not run")
    cannot = msgspec.structs.replace(other.point, absent="not on this machine")
    found = rank(
        [
            rival("quick"),
            rival("big", status="oom"),
            rival("long", status="timeout"),
            rival("ended", status="crashed", reason="interrupted by Ctrl-C while warming up"),
            rival("broken", status="crashed"),
            rival("unseen", status="not run"),
            rival("later", status="not run"),
            msgspec.structs.replace(other, point=cannot),
        ]
    )
    assert found.title == "the fastest of those timed"
    assert found.absent == (
        "; not timed: big (out of memory), long (timed out), ended (interrupted), broken (crashed), "
        "unseen, later (not run), other GPU's (cannot run here)"
    )
    assert not_timed((*found.untimed, *found.untimed)) == found.absent


@pytest.fixture
def pair(measure, setting):
    """A case in fp32 and bf16, the latter at the given multiple of its formula's time."""

    def make(size: str, seq_len: int, factor: float = 1.0, status="ok"):
        env = setting().environment
        base = model_case(model(size), 4, seq_len, "train_step", "cuda")
        lower = with_levers(base, precision="bf16")
        name = f"{size} {seq_len}"
        return Row(
            point=Point(case=lower, protocol=Protocol(), base=(base, Protocol())),
            base=measure(base, Protocol(), env, serial=f"{name} base"),
            measurement=measure(lower, Protocol(), env, status, f"{name} lower", factor),
        )

    return make


def test_one_case_is_told_alone(pair):
    (said,) = gains([pair("small", 128)], "bf16", "fp32")
    assert (
        said.text
        == "bf16 runs small 4 × 128 train_step at 8.00× the speed of fp32 (7.89× to 8.11× within one "
        "process of each)."
    )
    assert said.evidence[0].from_ids == ("msmall 128 base", "msmall 128 lower")


def test_the_range_and_the_geometric_mean(pair, figures):
    said, *_ = gains([pair("small", 128), pair("small", 256, 4.0)], "bf16", "fp32")
    assert figures(said) == pytest.approx(
        {
            "least speed-up": 2.0,
            "least speed-up, low end": 2 * RELATIVE_LOW,
            "least speed-up, high end": 2 / RELATIVE_LOW,
            "largest speed-up": 8.0,
            "largest speed-up, low end": 8 * RELATIVE_LOW,
            "largest speed-up, high end": 8 / RELATIVE_LOW,
            "speed-up": 4.0,
            "cases": 2,
            "cases that gain": 2,
            "cases that lose": 0,
            "cases not told apart": 0,
        }
    )


def test_the_mean_by_size_is_over_what_every_size_ran(pair, figures):
    speedups = [pair("small", 128, 4.0), pair("2.7B", 128), pair("2.7B", 256, 8.0)]
    told = figures(next(gains(speedups, "bf16", "fp32")))
    assert told["speed-up of small"] == pytest.approx(2.0)
    assert told["speed-up of 2.7B"] == pytest.approx(8.0)


def test_sizes_that_share_no_work_are_not_compared(pair, figures):
    (said,) = gains([pair("small", 128), pair("2.7B", 256, 4.0)], "bf16", "fp32")
    assert figures(said)["speed-up"] == pytest.approx(4.0)
    assert figures(said)["cases"] == 2


def test_a_loss_is_named(pair):
    _, said = gains([pair("small", 128), pair("small", 256, 16.0)], "bf16", "fp32")
    assert "slower than fp32 in 1 of 2 cases" in said.text
    assert "small 4 × 256" in said.text


def test_a_loss_within_the_intervals_is_not_claimed(pair):
    said = gains([pair("small", 128, 8.0 * 1.005)], "bf16", "fp32")
    assert [each.text for each in said if "slower" in each.text] == []


def test_a_case_that_ran_out_of_memory_is_left_out_of_the_figures(pair):
    speedups = [pair("small", 128), pair("2.7B", 128, status="oom")]
    (said,) = gains(speedups, "bf16", "fp32")
    assert "2.7B" not in said.text


def test_nothing_known_nothing_said(pair):
    crashed = pair("small", 128, status="crashed")
    unseen = msgspec.structs.replace(crashed, base=None, measurement=None)
    assert not list(gains([], "bf16", "fp32"))
    assert not list(gains([crashed, unseen], "bf16", "fp32"))
