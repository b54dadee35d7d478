"""What `vectorization` plans."""

from peakward.studies import vectorization


def test_loops_stay_small_and_numpy_stays_on_the_cpu(setting):
    for device in ("cpu", "cuda"):
        plan = vectorization.plan(setting("full", device))
        loops = [case for case, _ in plan if case.piece == "python loops"]
        assert max(case.sizes[0] for case in loops) == 256
        assert {case.device for case, _ in plan if case.piece == "numpy"} == {"cpu"}
