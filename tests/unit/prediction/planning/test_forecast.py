"""A case on a device, put together from time, memory and communication."""

import msgspec
import pytest

from accuracy.measured import studies
from peakward.hardware.devices import device, least_memory_bytes
from peakward.models.presets import model
from peakward.prediction.flops import step_flops
from peakward.prediction.memory.fit import fits, largest_batch
from peakward.prediction.memory.peak import peak_memory
from peakward.prediction.parameters import n_parameters
from peakward.prediction.planning.forecast import (
    CAPTURED_SHARE,
    COMPILED_SHARE,
    forecast,
    largest_batch_size,
    room,
)
from peakward.prediction.planning.site import Attempts, site
from peakward.prediction.time.device_model import device_model
from peakward.prediction.time.step import step_time
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.plan import DeviceGroup
from stored_results import FOLDER

H100 = device("h100-sxm-80")


def case(batch_size=4, size="small", **configuration):
    return ModelCase(
        model=model(size),
        workload=Workload(batch_size=batch_size, seq_len=512),
        configuration=Configuration(precision="bf16", **configuration),
        device="cuda",
    )


def test_rates_follow_from_the_step_and_their_ends_from_its_ends():
    found = forecast(case(), site(H100, price_per_gpu_hour=3.6))
    step = step_time(case(), device_model(None, H100)).step_s
    assert found.step_s == step
    assert found.tokens_per_s.estimate == pytest.approx(2048 / step.estimate)
    assert found.tokens_per_s.low == pytest.approx(2048 / step.high)
    assert found.mfu.high == pytest.approx(step_flops(case()) / 989.4e12 / step.low, rel=1e-3)
    assert found.floor_s < step.low
    # 3.6 an hour is a thousandth a second.
    assert found.cost_per_million_tokens.estimate == pytest.approx(
        0.001 * step.estimate * 1e6 / 2048
    )
    assert found.energy_per_token_j.high == pytest.approx(700 * step.high / 2048)
    assert found.absent == ()


def test_a_share_of_the_update_is_no_floor_of_the_whole():
    """AdamW's seven accesses of 2 bytes, of an eighth of the parameters."""
    asked = case(batch_size=1, size="llama-3-8b", attention="sdpa", optimizer="adamw-fused")
    alone = forecast(asked, site(H100))
    ddp, fsdp = (
        forecast(asked, site(H100, group=DeviceGroup(n_gpus=8, parallel=parallel)))
        for parallel in ("ddp", "fsdp")
    )
    assert ddp.floor_s == alone.floor_s
    update_s = 7 * 2 * n_parameters(asked.model) / 3350e9
    assert fsdp.floor_s == pytest.approx(alone.floor_s - 7 / 8 * update_s)
    assert fsdp.floor_s < fsdp.step_s.low


def test_without_a_price_there_is_no_cost_and_nothing_is_missing():
    found = forecast(case(), site(H100))
    assert found.cost_per_million_tokens is None
    assert found.absent == ()


def test_a_group_has_its_tokens_together_and_its_cost_apart():
    alone = forecast(case(), site(H100, price_per_gpu_hour=1.0))
    group = DeviceGroup(n_gpus=8, parallel="ddp")
    found = forecast(case(), site(H100, price_per_gpu_hour=1.0, group=group))
    assert found.step_s.estimate > alone.step_s.estimate
    assert found.tokens_per_s.estimate == pytest.approx(8 * 2048 / found.step_s.estimate)
    slower = found.step_s.estimate / alone.step_s.estimate
    ratio = found.cost_per_million_tokens.estimate / alone.cost_per_million_tokens.estimate
    assert ratio == pytest.approx(slower)


def test_where_the_link_is_unknown_the_step_of_a_group_is_not_computed():
    group = DeviceGroup(n_gpus=2, parallel="ddp")
    found = forecast(case(), site(device("rtx-4090-24"), group=group))
    assert found.time is not None
    assert found.step_s is found.tokens_per_s is found.mfu is found.communication is None
    assert [each.figure for each in found.absent] == ["communication"]


def test_a_device_without_cuda_has_memory_and_no_time():
    found = forecast(case(), site(device("mi300x-192")))
    assert found.time is found.step_s is None
    assert found.fits is True
    assert "compute capability" in found.absent[0].reason


def test_sharding_makes_a_model_fit():
    """8 billion parameters in bf16 with gradients and moments are 64 GB before any activation."""
    large = case(8, "llama-3-8b", attention="sdpa")
    assert forecast(large, site(H100)).fits is False
    group = DeviceGroup(n_gpus=8, parallel="fsdp")
    found = forecast(large, site(H100, group=group))
    assert found.fits is True
    assert found.needed_bytes < 60 * 2**30


def test_the_cases_own_limit_holds_where_it_is_lower():
    limited = msgspec.structs.replace(case(), memory_limit_bytes=2**30)
    found = forecast(limited, site(H100))
    assert found.limit_bytes == 2**30
    assert found.fits is False


def test_an_unknown_rate_is_not_computed():
    found = forecast(case(), site(device("v100-sxm2-32")))
    assert found.step_s is found.mfu is found.peak_flops_per_s is None
    assert {each.figure for each in found.absent} >= {"step time", "MFU"}


# Whether it fits, and how much more would.

CARD = device("rtx-4090-24")


def room_case(batch_size=4, seq_len=512, size="small", **configuration):
    return ModelCase(
        model=model(size),
        workload=Workload(batch_size=batch_size, seq_len=seq_len),
        configuration=Configuration(**configuration),
        device="cuda",
    )


def of(asked, group=None):
    attempts = Attempts()
    memory = peak_memory(asked, group)
    return room(asked, memory, site(CARD, group=group), attempts), attempts.absent


def test_needed_is_what_is_reserved_and_the_context():
    found, absent = of(room_case())
    memory = peak_memory(room_case())
    assert found.needed_bytes == memory.reserved_bytes + memory.context_bytes
    assert found.fits is True
    assert absent == ()


def test_a_group_is_looked_at_as_a_group():
    group = DeviceGroup(n_gpus=2, parallel="ddp")
    found, _ = of(room_case(), group)
    memory = peak_memory(room_case(), group)
    assert found.needed_bytes == memory.reserved_bytes + memory.context_bytes
    assert found.needed_bytes > of(room_case())[0].needed_bytes


@pytest.mark.parametrize("limit_gib", [4.6, 4.8, 5.0, 5.4])
def test_near_the_limit_it_is_the_allocator_that_decides(limit_gib):
    limit = int(limit_gib * 2**30)
    asked = msgspec.structs.replace(room_case(batch_size=8), memory_limit_bytes=limit)
    found, _ = of(asked)
    assert found.fits == fits(asked, limit)


@pytest.mark.parametrize("setting", [{"compile": "reduce-overhead"}, {"cuda_graphs": True}])
@pytest.mark.parametrize(("batch_size", "fits"), [(4, True), (256, False)])
def test_where_the_range_leaves_no_doubt_it_fits_or_not(batch_size, fits, setting):
    """Needed is what the eager step needs."""
    found, absent = of(room_case(batch_size, **setting))
    eager, _ = of(room_case(batch_size))
    assert found.needed_bytes == eager.needed_bytes
    assert found.fits is fits
    assert "times what eager code does" in absent[0].reason


@pytest.mark.parametrize("setting", [{"compile": "reduce-overhead"}, {"cuda_graphs": True}])
def test_in_doubt_nothing_is_said(setting):
    """The limit lies between the least and the most that such steps have needed."""
    at_limit = largest_batch(room_case(), least_memory_bytes(CARD))
    found, _ = of(room_case(at_limit, **setting))
    assert found.fits is None


def test_compiled_blocks_are_known_to_fit_or_not():
    """They hold less than the eager step, so that a larger batch fits."""
    compiled = room_case(compile="default")
    found, absent = of(compiled)
    memory = peak_memory(compiled)
    assert found.needed_bytes == memory.reserved_bytes + memory.context_bytes
    assert absent == ()
    assert largest_batch_size(compiled, site(CARD)) > largest_batch_size(room_case(), site(CARD))


def test_the_largest_batch_leaves_room_for_what_a_group_adds():
    group = DeviceGroup(n_gpus=2, parallel="ddp")
    large = room_case(size="large")  # Its gradients are 3.6 GiB of the card's 23.
    alone = largest_batch_size(large, site(CARD))
    assert 0 < largest_batch_size(large, site(CARD, group=group)) < alone
    with pytest.raises(PeakwardError, match="expected an eager step"):
        largest_batch_size(room_case(compile="reduce-overhead"), site(CARD))


@pytest.mark.full
def test_stored_steps_lie_in_the_ranges_of_compiled_code_and_of_graphs():
    """What they reserved, over what is predicted for the eager step."""
    shares = {"default": [], "captured": []}
    for study in studies(FOLDER).values():
        for each in study.measurements:
            case, use = each.case, each.memory
            if not isinstance(case, ModelCase) or use is None or each.status != "ok":
                continue
            if case.workload.data is not None:  # Not predicted.
                continue
            settings = case.configuration
            kind = "captured" if settings.cuda_graphs else settings.compile
            if kind not in shares:
                continue
            eager = msgspec.structs.replace(settings, compile="none", cuda_graphs=False)
            twin = msgspec.structs.replace(case, configuration=eager)
            shares[kind].append(use.peak_reserved_bytes / peak_memory(twin).reserved_bytes)
    for kind, (low, high), least in (
        ("default", COMPILED_SHARE, 60),
        ("captured", CAPTURED_SHARE, 4),
    ):
        assert len(shares[kind]) >= least
        assert low <= min(shares[kind])
        assert max(shares[kind]) <= high
