"""Parts' times read off a profile."""

import msgspec
import pytest

from peakward.records.case import OperatorCase
from peakward.studies.attention_parts.times import part_times

CASE = OperatorCase(batch_size=1, n_heads=2, seq_len=64, head_dim=16, device="cpu")


@pytest.mark.parametrize(("direction", "factor"), [("forward", 1), ("backward", 2)])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_parts_of_one_step_sum_to_the_whole(direction, factor, n_steps, profile):
    found = part_times(profile(CASE, n_steps), direction)
    ns = [each * 1e9 / factor for each in (found.scores_s, found.mask_s, found.softmax_s)]
    assert ns == pytest.approx([200, 150, 300])
    assert found.values_s * 1e9 == pytest.approx(300 * factor)
    assert found.rest_s * 1e9 == pytest.approx(50 * factor)
    assert found.softmax_share == pytest.approx(0.3)
    assert found.over_products == pytest.approx(0.6)


def test_a_profile_without_the_ranges_has_no_parts(profile):
    made = profile(CASE)
    bare = msgspec.structs.replace(made, profile=msgspec.structs.replace(made.profile, ranges=()))
    assert part_times(bare, "forward") is None


def test_parts_that_make_the_whole_leave_no_rest(profile):
    """Their sum in seconds is off by the rounding of floats."""
    made = profile(CASE, 3)
    parts = {"scores": 7_502, "softmax": 3_968, "values": 7_163}
    ranges = [
        msgspec.structs.replace(
            made.profile.ranges[0],
            name=f"peakward::attention.{name}",
            direction="forward",
            category="matmul" if name != "softmax" else "softmax",
            total_ns=ns,
        )
        for name, ns in parts.items()
    ]
    whole = msgspec.structs.replace(
        ranges[0], name="peakward::attention", total_ns=sum(parts.values())
    )
    exact = msgspec.structs.replace(made.profile, ranges=(whole, *ranges))
    assert part_times(msgspec.structs.replace(made, profile=exact), "forward").rest_s == 0.0


def test_casts_are_a_part_of_their_own(profile):
    """Copies around the softmax and before the product of the values, of an H200 in bf16."""
    ns = {
        ("", "copy"): 660,
        ("", "softmax"): 334,
        ("", "matmul"): 192,
        (".scores", "matmul"): 95,
        (".softmax", "softmax"): 334,
        (".softmax", "copy"): 443,
        (".values", "copy"): 217,
        (".values", "matmul"): 97,
    }
    made = profile(CASE, 1)
    ranges = tuple(
        msgspec.structs.replace(
            made.profile.ranges[0],
            name=f"peakward::attention{part}",
            direction="forward",
            category=category,
            total_ns=total_ns,
        )
        for (part, category), total_ns in ns.items()
    )
    cast = msgspec.structs.replace(made.profile, ranges=ranges)
    found = part_times(msgspec.structs.replace(made, profile=cast), "forward")
    assert found.softmax_s * 1e9 == pytest.approx(334)
    assert found.casts_s * 1e9 == pytest.approx(443 + 217)
    assert found.over_products == pytest.approx(334 / 192)
    assert found.rest_s == 0
