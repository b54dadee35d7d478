"""What a loader of text cannot be combined with."""

import pytest

from peakward.levers.catalogue import case_obstacle
from peakward.levers.workload import workers_obstacle, workload_obstacle
from peakward.models.presets import model
from peakward.records.case import ModelCase, Source, TextData, Workload


def case(device="cpu", work=None, **data):
    found = TextData(text=Source("python-topics"), **data)
    workload = Workload(**{"batch_size": 1, "seq_len": 16, "data": found, **(work or {})})
    return ModelCase(model=model("tiny"), workload=workload, device=device)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (case(), None),
        (case(n_workers=8), None),
        (case("cuda", pin_memory=True, non_blocking=True), None),
        (case("cuda", {"data": None, "pass_": "decode"}), None),
        (case(pin_memory=True), "pinned memory and non-blocking copies need a GPU"),
        (case(non_blocking=True), "pinned memory and non-blocking copies need a GPU"),
        (case(work={"pass_": "prefill"}), "needs a pass without a key-value cache, got prefill"),
        (case(work={"varying_seq_lens": (8, 16)}), "needs sequences of one length"),
    ],
)
def test_obstacles(given, said):
    for reason in (
        workload_obstacle(given),
        case_obstacle(given, compute_capability=None, has_compiler=True),
    ):
        assert reason is None if said is None else said in reason


@pytest.mark.parametrize(
    ("n", "n_cores", "fits"),
    [(0, 1, True), (8, 2, True), (9, 2, False), (16, 16, True), (-1, 2, False)],
)
def test_workers_that_are_sensible(n, n_cores, fits):
    reason = workers_obstacle(n, n_cores)
    assert (reason is None) == fits
    if reason:
        assert reason.startswith(f"expected 0 to {max(8, n_cores)} loader workers")
