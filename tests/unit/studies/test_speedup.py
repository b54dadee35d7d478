"""What is said of a gain: its range, its losses, its trend, and nothing where nothing is known."""

import math

import pytest

from peakward.models.presets import model
from peakward.records.protocol import Protocol
from peakward.studies.cases import model_case, with_levers
from peakward.studies.speedup import Speedup, gains

RELATIVE_LOW = math.exp(-math.hypot(math.log(0.99), math.log(1.01)))
"""Of a ratio of two medians, each known to 1%."""


@pytest.fixture
def pair(measure, setting):
    """A case in fp32 and bf16, the latter at the given multiple of its formula's time."""

    def make(size: str, seq_len: int, factor: float = 1.0, status="ok"):
        env = setting().environment
        base = model_case(model(size), 4, seq_len, "train_step", "cuda")
        lower = with_levers(base, precision="bf16")
        name = f"{size} {seq_len}"
        return Speedup(
            base=measure(base, Protocol(), env, serial=f"{name} base"),
            candidate=measure(lower, Protocol(), env, status, f"{name} lower", factor),
        )

    return make


def values(conclusion):
    return {each.quantity: each.value for each in conclusion.evidence}


def test_one_case_is_told_alone(pair):
    (said,) = gains([pair("small", 128)], "bf16", "fp32")
    assert (
        said.text
        == "bf16 runs small 4 × 128 train_step at 8.00× the speed of fp32 (7.89× to 8.11× within one "
        "process of each)."
    )
    assert said.evidence[0].from_ids == ("msmall 128 base", "msmall 128 lower")


def test_the_range_and_the_geometric_mean(pair):
    said = gains([pair("small", 128), pair("small", 256, 4.0)], "bf16", "fp32")
    assert values(said[0]) == pytest.approx(
        {
            "least speed-up": 2.0,
            "least speed-up, low end": 2 * RELATIVE_LOW,
            "least speed-up, high end": 2 / RELATIVE_LOW,
            "largest speed-up": 8.0,
            "largest speed-up, low end": 8 * RELATIVE_LOW,
            "largest speed-up, high end": 8 / RELATIVE_LOW,
            "speed-up": 4.0,
            "cases": 2,
        }
    )


def test_the_mean_by_size_is_over_what_every_size_ran(pair):
    speedups = [pair("small", 128, 4.0), pair("2.7B", 128), pair("2.7B", 256, 8.0)]
    told = values(gains(speedups, "bf16", "fp32")[0])
    assert told["speed-up of small"] == pytest.approx(2.0)
    assert told["speed-up of 2.7B"] == pytest.approx(8.0)


def test_sizes_that_share_no_work_are_not_compared(pair):
    (said,) = gains([pair("small", 128), pair("2.7B", 256, 4.0)], "bf16", "fp32")
    assert values(said)["speed-up"] == pytest.approx(4.0)
    assert values(said)["cases"] == 2


def test_a_loss_is_named(pair):
    said = gains([pair("small", 128), pair("small", 256, 16.0)], "bf16", "fp32")
    assert "slower than fp32 in 1 of 2 cases" in said[1].text
    assert "small 4 × 256" in said[1].text


def test_a_loss_within_the_intervals_is_not_claimed(pair):
    said = gains([pair("small", 128, 8.0 * 1.005)], "bf16", "fp32")
    assert [each.text for each in said if "slower" in each.text] == []


def test_a_case_that_ran_out_of_memory_is_left_out_of_the_figures(pair):
    speedups = [pair("small", 128), pair("2.7B", 128, status="oom")]
    (said,) = gains(speedups, "bf16", "fp32")
    assert "2.7B" not in said.text


def test_nothing_known_nothing_said(pair):
    assert gains([], "bf16", "fp32") == ()
    assert gains([pair("small", 128, status="crashed")], "bf16", "fp32") == ()
    assert gains([Speedup(base=None, candidate=None)], "bf16", "fp32") == ()
