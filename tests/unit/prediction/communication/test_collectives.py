"""Bytes on the wire of a ring, by hand."""

import pytest

from peakward.prediction.communication import collectives


def test_two_gpus_each_send_half_of_it_twice():
    # Half of the sums go one way, then the other half's come back: 2 · 1/2.
    assert collectives.all_reduce_bytes(1000, 2) == 1000
    assert collectives.all_gather_bytes(1000, 2) == 500


def test_of_eight_gpus_each_passes_on_seven_eighths():
    assert collectives.all_gather_bytes(800, 8) == 700
    assert collectives.all_reduce_bytes(800, 8) == 1400


def test_one_gpu_has_nobody_to_tell():
    assert collectives.all_reduce_bytes(1000, 1) == 0


def test_a_link_is_never_reached_whole_and_its_interval_says_by_how_much():
    found = collectives.time_s(450e9, 450e9)
    assert found.low < 1 < found.estimate < found.high
    # 370 of 450 GB/s by a ring of eight H100 (nccl-tests issue 212).
    assert found.estimate == pytest.approx(450 / 370, rel=0.03)
