"""What a trial of cases timed in turn says."""

from peakward.catalogue.levers import lever, pull
from peakward.lab.measure.messages import Turn
from peakward.records.case import ModelCase, Workload
from peakward.tune import trials

from .world import SHAPE

BASE = ModelCase(model=SHAPE, workload=Workload(batch_size=2, seq_len=16), device="cpu")
SDPA = lever("sdpa")


def test_doubts_that_differ_in_their_figures_alone_are_said_once():
    candidate = pull(SDPA, BASE)

    def turn(share):
        doubts = (f"other work took {share}% > 5% of the cores while timing",)
        return Turn(median_s=1.0, peak_bytes=1, doubts=doubts)

    rounds = [{BASE: turn(60), candidate: turn(61.5)}, {BASE: turn(70), candidate: turn(80)}]
    comparison = trials.Comparison("sdpa", BASE, candidate, None)
    reason = trials.judged(comparison, rounds, "k", 1.0).reason
    assert reason.endswith("took 60% > 5% of the cores while timing, and in 3 turns more alike")
    assert reason.count("other work") == 1
