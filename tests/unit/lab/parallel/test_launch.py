"""A job ends when a rank is lost, and names it and the cause; nothing of it is left."""

import os
from time import monotonic, sleep

import msgspec
import pytest

from peakward.lab.parallel.launch import LOST_PEER, RankError
from peakward.models.presets import model
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.layout import Layout
from peakward.records.parallel import Arm, ArmsRequest
from tiers import in_full
from unit.lab.parallel.job import run_ranks

PATIENCE_S = 4.0
CAUSES = {
    "killed": r"rank 1 was ended by SIGKILL in step 3 \(forward\)",
    "exits": r"rank 1 ended with exit code 3 in step 3 \(forward\)",
    "raises": r"rank 1 failed in step 3 \(forward\): ValueError: the loader is empty",
    "restores": r"rank 1 failed in step 3 \(forward\): KeyError: 'could not restore the state",
    "not_a_number": r"rank 1 failed in step 3 \(forward\): expected a finite loss, got nan in step 3",
    "hangs": r"no rank got on for 4 s: rank 1 is behind, in step 3 \(forward\), at hangs \(lost.py:\d+\)",
    "diverges": r"rank 1 is behind, in step 3 \(forward\), at barrier, called by diverges \(lost.py:\d+\)",
}


FAST = ("hangs", "killed")
"""An error of one rank is that of `poisoned` and `lacking` below."""


@pytest.mark.parametrize("how", [*FAST, *in_full(sorted(set(CAUSES) - set(FAST)))])
def test_a_lost_rank_ends_the_job_and_is_named(how):
    with pytest.raises(RankError, match=CAUSES[how]) as caught:
        run_ranks("lost:lose", {"rank": 1, "how": how}, n_ranks=2, patience_s=PATIENCE_S)
    assert caught.value.rank == 1


def test_an_error_of_a_rank_s_own_is_not_one_of_a_peer_that_left():
    for own in ("KeyError: 'could not restore the state of layer 3'", "expected a finite loss"):
        assert not LOST_PEER.search(own)
    assert LOST_PEER.search("RuntimeError: [store->get] Connection reset by peer")


@pytest.mark.full
def test_of_three_ranks_that_call_different_collectives_the_odd_one_is_named():
    with pytest.raises(RankError, match="rank 2"):
        run_ranks("lost:lose", {"rank": 2, "how": "diverges"}, n_ranks=3, patience_s=PATIENCE_S)


def case(**settings):
    shape = msgspec.structs.replace(
        model("tiny"), name="test", n_layers=2, d_model=32, d_ff=64, head_dim=8, vocab_size=64
    )
    return ModelCase(
        model=shape,
        workload=Workload(batch_size=2, seq_len=8, pass_="train_step"),
        configuration=Configuration(attention="sdpa", **settings),
        device="cpu",
    )


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("lost:poisoned", r"rank 1 failed .*expected a finite loss, got nan in step \d"),
        ("lost:lacking", r"rank 1 failed .*OutOfMemoryError: CUDA out of memory"),
    ],
)
def test_what_happens_to_one_rank_s_arm_is_named_before_all_have_it(job, said):
    arm = Arm(name="fsdp", layout=Layout(dp=2, data="fsdp"), compiled=False)
    request = ArmsRequest(case=case(), arms=(arm,))
    with pytest.raises(RankError, match=said):
        run_ranks(job, msgspec.to_builtins(request), n_ranks=2)


LAYOUTS = {
    "ddp": Layout(dp=2),
    "tp": Layout(tp=2),
    "pp": Layout(pp=2, n_micro_batches=2),
    "alone": Layout(dp=2, data="flat"),
}


@pytest.fixture(scope="module")
def orderly():
    """What each rank of a job that ended by itself found: ranks take seconds to start."""
    given = {
        "case": msgspec.to_builtins(case(precision="bf16-mixed")),
        "layouts": {name: msgspec.to_builtins(each) for name, each in LAYOUTS.items()},
    }
    return run_ranks("lost:orderly", given, n_ranks=2)


def test_every_layout_computes_in_the_case_s_precision(orderly):
    """Autocast around each forward pass, of a pipeline's stages too."""
    for found in orderly:
        assert found["types"] == dict.fromkeys(LAYOUTS, "torch.bfloat16")


def test_nothing_is_left_of_a_job(orderly):
    """Neither ranks nor what they started."""
    children = [each["child"] for each in orderly]
    assert len(set(children)) == 2
    until_s = monotonic() + 5
    while any(_lives(each) for each in children) and monotonic() < until_s:
        sleep(0.1)
    assert not any(_lives(each) for each in children)


def test_a_job_has_a_limit():
    with pytest.raises(RankError, match="the job did not end within 3 s") as caught:
        run_ranks("lost:lose", {"rank": 0, "how": "hangs"}, n_ranks=1, timeout_s=3)
    assert caught.value.rank == 0


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
