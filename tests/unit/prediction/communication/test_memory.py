"""Bytes a GPU of a group holds beyond one by itself."""

import pytest

from peakward.catalogue.models import model
from peakward.prediction.communication.memory import added_bytes
from peakward.prediction.communication.step import parameter_bytes
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.plan import Group


def case(pass_="train_step", precision="fp32"):
    return ModelCase(
        model=model("llama-3-8b"),
        workload=Workload(batch_size=1, seq_len=512, pass_=pass_),
        configuration=Configuration(precision=precision),
        device="cuda",
    )


def test_ddp_holds_the_gradients_again_in_its_buckets():
    group = Group(n_gpus=8, parallel="ddp")
    assert added_bytes(case(), group) == parameter_bytes(case())
    assert added_bytes(case("forward"), group) == 0


@pytest.mark.parametrize(
    ("pass_", "copies"), [("forward", 1), ("forward_backward", 2), ("train_step", 4)]
)
def test_fsdp_shards_parameters_gradients_and_both_moments(pass_, copies):
    """ZeRO-3: of sixteen bytes a parameter in fp32 2 remain on each of eight, beside what is
    gathered: tables and head (2 · 128,256 · 4096 parameters) and two or three blocks."""
    of = case(pass_)
    sharded = copies * parameter_bytes(of) * 7 / 8
    gathered = added_bytes(of, Group(n_gpus=8, parallel="fsdp")) + sharded
    table = 2 * 128_256 * 4096 * 4
    block = (parameter_bytes(of) - table) / 32
    blocks = 2 if pass_ == "forward" else 3
    assert gathered == pytest.approx(table + blocks * block, rel=1e-6)
