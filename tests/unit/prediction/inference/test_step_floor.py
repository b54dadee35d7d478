"""A step takes the longer of its two times."""

from peakward.prediction.inference.step_floor import step_floor
from peakward.records.inference import Cost, StepFloor

from .served import H100


def test_a_step_takes_the_longer_of_its_two_times() -> None:
    on = H100._replace(matmul_flops_per_s=100.0, bytes_per_s=10.0)
    moved = step_floor(Cost(flops=200.0, bytes=30.0, flops_per_byte=200 / 30), on)
    computed = step_floor(Cost(flops=400.0, bytes=30.0, flops_per_byte=400 / 30), on)
    assert moved == StepFloor(compute_s=2.0, memory_s=3.0, floor_s=3.0, bound="memory")
    assert computed == StepFloor(compute_s=4.0, memory_s=3.0, floor_s=4.0, bound="compute")
