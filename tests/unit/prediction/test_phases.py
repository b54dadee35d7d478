"""The phases of each pass, and costs averaged over lengths."""

from typing import get_args

from peakward.prediction.phases import OPERATOR_PHASES, PHASES, mean_over_lengths
from peakward.records.case import OperatorPass, Pass, Workload


def test_every_pass_has_phases_and_begins_with_forward() -> None:
    assert set(PHASES) == set(get_args(Pass))
    assert all(phases[0] == "forward" for phases in PHASES.values())


def test_every_pass_of_an_operator_has_phases() -> None:
    assert set(OPERATOR_PHASES) == set(get_args(OperatorPass))


def test_a_cost_is_averaged_over_a_cycle() -> None:
    fixed = Workload(batch_size=1, seq_len=8)
    varying = Workload(batch_size=1, seq_len=8, varying_seq_lens=(2, 4, 6))
    assert mean_over_lengths(fixed, float) == 8
    assert mean_over_lengths(varying, float) == 4
    assert mean_over_lengths(varying, lambda length: length**2) == (4 + 16 + 36) / 3
