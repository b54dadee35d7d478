"""Layouts over NCCL end with the parameters of one process, as over gloo; collectives and lost ranks."""

import pytest
import torch

from peakward.lab.parallel.launch import RankError
from peakward.lab.parallel.measured import calibrate
from unit.lab.parallel.job import run_ranks
from unit.lab.parallel.test_layouts import TWO

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


def test_three_steps_over_nccl_end_with_the_parameters_of_one_process():
    cases = [{"kind": kind, "layout": layout, "optimizer": "sgd"} for kind, layout in TWO.values()]
    by_rank = run_ranks(
        "layouts:compare", {"cases": cases}, n_ranks=2, device="cuda", timeout_s=300
    )
    for name, *found in zip(TWO, *by_rank, strict=True):
        assert max(each["parameters"] for each in found) < 1e-12, name


def test_collectives_of_two_gpus_are_timed():
    found = calibrate(2, "cuda", sizes_mb=(1, 10))
    assert found.backend == "nccl" and len(found.times) == 10
    assert min(each.bus_bytes_per_s for each in found.times) > 1e9


def test_a_hung_rank_is_named_over_nccl():
    with pytest.raises(RankError, match="rank 1 is behind") as caught:
        run_ranks("lost:lose", {"rank": 1, "how": "hangs"}, n_ranks=2, device="cuda", patience_s=5)
    assert caught.value.rank == 1
