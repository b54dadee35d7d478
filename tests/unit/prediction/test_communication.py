"""What a step waits for the others."""

import msgspec
import pytest

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.communication import (
    all_gather_bytes,
    all_reduce_bytes,
    communication,
    model_bytes,
    time_s,
    update_saved_s,
)
from peakward.prediction.parameters import n_parameters
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Interval
from peakward.records.plan import DeviceGroup
from peakward.records.prediction import PhasePrediction, StepTime

H100 = device("h100-sxm-80")


def case(pass_="train_step", accumulate=1, precision="bf16"):
    return ModelCase(
        model=model("small"),
        workload=Workload(batch_size=4, seq_len=512, pass_=pass_, accumulate=accumulate),
        configuration=Configuration(precision=precision),
        device="cuda",
    )


def timed(of, **phase_s):
    """A step whose phases take the device so long, and the host next to nothing."""
    phases = tuple(
        PhasePrediction(phase=phase, device_s=seconds, host_s=1e-9, n_launches=1)
        for phase, seconds in phase_s.items()
    )
    total = sum(phase_s.values())
    return StepTime(
        case=of,
        device="H100",
        source="datasheet",
        step_s=Interval(estimate=total, low=total, high=total, level=0.9),
        bound="device",
        phases=phases,
        operators=(),
    )


def exposed(of, group, **phase_s):
    return communication(of, timed(of, **phase_s), group, H100)


def test_parameters_have_the_bytes_that_they_are_stored_in():
    n = n_parameters(model("small"))
    assert model_bytes(case(precision="bf16")) == 2 * n
    assert model_bytes(case(precision="bf16-mixed")) == 4 * n


def test_ddp_reduces_every_gradient_once_a_step():
    group = DeviceGroup(n_gpus=8, parallel="ddp")
    once = exposed(case(), group, backward=1.0)
    assert once.sent_bytes == pytest.approx(2 * 7 / 8 * model_bytes(case()))
    more = exposed(case(accumulate=4), group, backward=1.0)
    assert more.sent_bytes == once.sent_bytes


def test_ddp_hides_behind_a_long_backward_pass_all_but_its_last_bucket():
    found = exposed(case(), DeviceGroup(n_gpus=2, parallel="ddp"), backward=10.0)
    share = 25 * 2**20 / model_bytes(case())
    assert found.exposed_s.estimate == pytest.approx(share * found.time_s.estimate)
    assert found.exposed_s.high == found.time_s.high


def test_ddp_waits_for_what_a_short_backward_pass_does_not_hide():
    found = exposed(case(), DeviceGroup(n_gpus=2, parallel="ddp"), backward=1e-6)
    assert found.exposed_s.estimate == pytest.approx(found.time_s.estimate - 1e-6)


def test_a_reduction_hides_in_the_last_micro_batch_alone():
    """Of a backward pass of 1 s in eight micro-batches an eighth; the link takes longer."""
    group = DeviceGroup(n_gpus=8, parallel="ddp")
    whole = exposed(case(), group, backward=1.0).time_s.estimate
    phase_s = 4 * whole
    found = exposed(case(accumulate=8), group, backward=phase_s)
    assert found.exposed_s.estimate == pytest.approx(whole - phase_s / 8)


def test_a_forward_pass_under_ddp_says_nothing():
    found = exposed(case("forward"), DeviceGroup(n_gpus=8, parallel="ddp"), forward=1.0)
    assert found.sent_bytes == 0
    assert found.exposed_s.high == 0


def test_fsdp_gathers_twice_a_micro_batch_and_reduces_once():
    group = DeviceGroup(n_gpus=4, parallel="fsdp")
    gathered = 3 / 4 * model_bytes(case())
    once = exposed(case(), group, forward=1.0, backward=1.0)
    assert once.sent_bytes == pytest.approx(3 * gathered)
    more = exposed(case(accumulate=2), group, forward=1.0, backward=1.0)
    assert more.sent_bytes == pytest.approx(5 * gathered)


def test_fsdp_leaves_each_gpu_its_share_of_the_update():
    of = case()
    step = timed(of, forward=1.0, backward=2.0, optimizer=0.8)
    assert update_saved_s(step, DeviceGroup(n_gpus=4, parallel="fsdp")) == pytest.approx(0.6)
    assert update_saved_s(step, DeviceGroup(n_gpus=4, parallel="ddp")) == 0


@pytest.mark.parametrize(("host_s", "saved_s"), [(0.6, 0.15), (1.0, 0.0)])
def test_what_the_host_takes_for_an_update_is_not_saved(host_s, saved_s):
    step = timed(case(), forward=1.0, optimizer=0.8)
    forward, optimizer = step.phases
    update = msgspec.structs.replace(optimizer, host_s=host_s)
    launched = msgspec.structs.replace(step, phases=(forward, update))
    found = update_saved_s(launched, DeviceGroup(n_gpus=4, parallel="fsdp"))
    assert found == pytest.approx(saved_s)


@pytest.mark.parametrize("key", ["rtx-4090-24", "l40s-48"])
def test_without_a_link_between_them_it_is_refused(key):
    of = case()
    with pytest.raises(PeakwardError, match="a link that joins 2"):
        communication(
            of, timed(of, backward=1.0), DeviceGroup(n_gpus=2, parallel="ddp"), device(key)
        )


def test_a_bridge_between_two_does_not_join_four():
    of, pcie = case(), device("h100-pcie-80")
    group = DeviceGroup(n_gpus=2, parallel="ddp")
    assert communication(of, timed(of, backward=1.0), group, pcie).sent_bytes > 0
    more = msgspec.structs.replace(group, n_gpus=4)
    with pytest.raises(PeakwardError, match="between 2"):
        communication(of, timed(of, backward=1.0), more, pcie)


def test_quantised_weights_are_held_whole():
    of = case("forward")
    settings = msgspec.structs.replace(of.configuration, weights="int8")
    of = msgspec.structs.replace(of, configuration=settings)
    step = timed(of, forward=1.0)
    found = communication(of, step, DeviceGroup(n_gpus=8, parallel="ddp"), device("h100-sxm-80"))
    assert found.sent_bytes == 0
    with pytest.raises(
        PeakwardError, match=r"expected dense weights for fsdp, .* got int8: take ddp"
    ):
        communication(of, step, DeviceGroup(n_gpus=8, parallel="fsdp"), device("h100-sxm-80"))


# Bytes on the wire of a ring, by hand.


def test_two_gpus_each_send_half_of_it_twice():
    # Half of the sums go one way, then the other half's come back: 2 · 1/2.
    assert all_reduce_bytes(1000, 2) == 1000
    assert all_gather_bytes(1000, 2) == 500


def test_of_eight_gpus_each_passes_on_seven_eighths():
    assert all_gather_bytes(800, 8) == 700
    assert all_reduce_bytes(800, 8) == 1400


def test_one_gpu_has_nobody_to_tell():
    assert all_reduce_bytes(1000, 1) == 0


def test_a_link_is_never_reached_whole_and_its_interval_says_by_how_much():
    found = time_s(450e9, 450e9)
    assert found.low < 1 < found.estimate < found.high
    # 370 of 450 GB/s by a ring of eight H100 (nccl-tests issue 212).
    assert found.estimate == pytest.approx(450 / 370, rel=0.03)
