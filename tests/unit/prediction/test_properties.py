"""What holds of every shape, workload and device, on random ones."""

from typing import Any, get_args, get_type_hints

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.hardware.devices import devices
from peakward.models.presets import validate
from peakward.prediction.floor import floor
from peakward.prediction.flops import forward_flops, phase_flops, recomputed_flops, step_flops
from peakward.prediction.parameters import n_parameters
from peakward.prediction.traffic import cached_bytes, compulsory_bytes, parameter_bytes
from peakward.records.case import Configuration, ModelCase, Pass, Workload
from peakward.records.device import Device
from peakward.records.model_shape import ModelShape
from peakward.records.prediction import Prediction

from .inference.drawn import shapes

untimed = settings(max_examples=60, deadline=None)

replace: Any = msgspec.structs.replace


@st.composite
def cases(draw: st.DrawFn) -> ModelCase:
    admitted = get_type_hints(Configuration)
    seq_len = draw(st.integers(1, 512))
    pass_ = draw(st.sampled_from(get_args(Pass)))
    caches = pass_ in ("prefill", "decode")
    lengths = st.lists(st.integers(1, seq_len), max_size=0 if caches else 3)
    policies = ("none",) if caches else get_args(admitted["checkpointing"])
    return ModelCase(
        model=draw(shapes()),
        workload=Workload(
            batch_size=draw(st.integers(1, 16)),
            seq_len=seq_len,
            pass_=pass_,
            accumulate=draw(st.integers(1, 1 if caches else 4)),
            varying_seq_lens=tuple(draw(lengths)),
        ),
        configuration=Configuration(
            precision=draw(st.sampled_from(get_args(admitted["precision"]))),
            checkpointing=draw(st.sampled_from(policies)),
        ),
        device=draw(st.sampled_from(("cpu", "cuda"))),
    )


def on(case: ModelCase, device: Device) -> Prediction:
    return floor(case, calibration=None, device=device)


def close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b))


@untimed
@given(shapes())
def test_drawn_shapes_are_valid_and_have_parameters(shape: ModelShape) -> None:
    validate(shape)
    assert n_parameters(shape) > 0


@untimed
@given(shapes())
def test_tying_the_head_saves_one_table(shape: ModelShape) -> None:
    untied, tied = replace(shape, tied_head=False), replace(shape, tied_head=True)
    assert n_parameters(untied) - n_parameters(tied) == shape.vocab_size * shape.d_model


@untimed
@given(shapes(), st.integers(1, 5))
def test_parameters_grow_by_the_same_amount_with_every_layer(shape: ModelShape, k: int) -> None:
    deeper = [n_parameters(replace(shape, n_layers=shape.n_layers + i)) for i in (0, 1, k)]
    assert deeper[2] - deeper[0] == k * (deeper[1] - deeper[0]) > 0


@untimed
@given(shapes(), st.integers(1, 16), st.integers(1, 512), st.integers(1, 8))
def test_flops_are_linear_in_the_batch(
    shape: ModelShape, batch_size: int, seq_len: int, times: int
) -> None:
    once = forward_flops(shape, batch_size, seq_len)
    assert close(forward_flops(shape, times * batch_size, seq_len), times * once)


@untimed
@given(shapes(), st.integers(1, 256), st.integers(2, 4))
def test_a_longer_sequence_costs_at_least_in_proportion(
    shape: ModelShape, seq_len: int, times: int
) -> None:
    once = forward_flops(shape, 1, seq_len)
    assert forward_flops(shape, 1, times * seq_len) >= times * once * (1 - 1e-12)


@untimed
@given(shapes(), st.integers(1, 512), st.integers(1, 600))
def test_a_window_never_adds_and_is_nothing_where_it_covers_all(
    shape: ModelShape, seq_len: int, window: int
) -> None:
    windowed = forward_flops(replace(shape, window=window), 1, seq_len)
    whole = forward_flops(replace(shape, window=None), 1, seq_len)
    assert windowed <= whole
    if window >= seq_len:
        assert windowed == whole


@untimed
@given(cases())
def test_a_step_is_the_sum_of_its_phases_and_training_three_forwards(case: ModelCase) -> None:
    assert step_flops(case) == sum(phase_flops(case).values())
    passes = {
        name: step_flops(replace(case, workload=replace(case.workload, pass_=name)))
        for name in get_args(Pass)
    }
    assert passes["train_step"] == passes["forward_backward"]
    assert close(passes["train_step"] or 0, 3 * (passes["forward"] or 0))


@untimed
@given(cases())
def test_recomputing_never_costs_a_whole_forward_pass(case: ModelCase) -> None:
    forward = phase_flops(case)["forward"]
    assert 0 <= recomputed_flops(case) < forward


@untimed
@given(cases())
def test_a_forward_pass_never_moves_more_than_every_parameter_id_and_cached_position(
    case: ModelCase,
) -> None:
    n_ids = case.workload.tokens_per_step
    most = case.workload.accumulate * parameter_bytes(case) * n_parameters(case.model) + 8 * n_ids
    most += cached_bytes(case)
    assert 0 < compulsory_bytes(case)["forward"] <= most * (1 + 1e-12)


@untimed
@given(cases(), st.sampled_from(devices()))
def test_a_floor_is_the_longer_of_its_two_times_in_every_phase(
    case: ModelCase, device: Device
) -> None:
    prediction = on(case, device)
    for phase in prediction.phases:
        if phase.compute_s is not None:
            assert phase.floor_s == max(phase.compute_s, phase.memory_s)
            assert phase.bound == ("compute" if phase.compute_s > phase.memory_s else "memory")
    known = [phase.floor_s for phase in prediction.phases if phase.floor_s is not None]
    complete = len(known) == len(prediction.phases)
    assert prediction.floor_s == (sum(known) if complete else None)
    assert complete == (prediction.matmul_flops_per_s is not None)


@untimed
@given(cases(), st.sampled_from(devices()), st.integers(1, 4), st.integers(0, 3))
def test_more_work_never_has_a_lower_floor(
    case: ModelCase, device: Device, times: int, more: int
) -> None:
    workload = case.workload
    larger = replace(
        workload,
        batch_size=times * workload.batch_size,
        accumulate=workload.accumulate + more,
    )
    deeper = replace(case.model, n_layers=case.model.n_layers + more)
    base = on(case, device).floor_s
    for grown in (replace(case, workload=larger), replace(case, model=deeper)):
        floor_s = on(grown, device).floor_s
        assert (base is None) == (floor_s is None)
        assert base is None or floor_s is None or floor_s >= base * (1 - 1e-12)


@untimed
@given(cases(), st.sampled_from(devices()), st.floats(1, 100))
def test_a_device_twice_as_fast_has_half_the_floor(
    case: ModelCase, device: Device, times: float
) -> None:
    faster = replace(
        device,
        bytes_per_s=replace(device.bytes_per_s, value=times * device.bytes_per_s.value),
        peak_flops_per_s={
            kind: replace(peak, value=times * peak.value)
            for kind, peak in device.peak_flops_per_s.items()
        },
    )
    base, fast = on(case, device).floor_s, on(case, faster).floor_s
    assert (base is None) == (fast is None)
    assert base is None or fast is None or close(base, times * fast)
