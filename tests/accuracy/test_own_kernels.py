"""Peakward's own kernels as an H100 took them by themselves, beside what is predicted of them."""

import json
from statistics import median

import pytest

from peakward.hardware import devices
from peakward.levers import decode_step
from peakward.models.presets import model
from peakward.prediction.time.device_model import device_model
from peakward.prediction.time.kernels import NEVER_MEASURED, TIMED
from peakward.prediction.time.operator_time import cost
from peakward.prediction.time.setting import of_case
from peakward.records import codec
from peakward.records.calibration import Calibration
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.op_graph import Operand, Operator
from stored_results import index

LARGE_BYTES = 150 << 20
"""Moved: of less the launch, and what is not yet in flight, take a share."""


@pytest.fixture(scope="module")
def h100():
    stored = index().newest("calibration")["h100-sxm-80"].read()
    found = codec.from_json(stored, Calibration)
    here = found.environment
    return device_model(found, devices.match_all([(here.device_name, here.device_memory_bytes)]))


def timed(name):
    """Shape and seconds of each contest of ours."""
    for outcome in json.loads(index()[f"2026-11-{name}"].read())["outcomes"]:
        (ours,) = (each for each in outcome["arms"] if each["name"] == "peakward")
        yield outcome["shape"], ours["median_s"]


def tensor(*shape):
    return Operand(shape=shape, dtype="bfloat16", count=1)


def moving(name, inputs, outputs):
    return Operator(
        name=f"peakward.{name}",
        phase="forward",
        module=None,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        flops=0,
        bytes_read=sum(each.n_bytes for each in inputs),
        bytes_written=sum(each.n_bytes for each in outputs),
        count=1,
    )


def swiglu():
    for shape, took_s in timed("22-h100-kernel-speed-swiglu"):
        x, y = tensor(shape["rows"], 2 * shape["d_ff"]), tensor(shape["rows"], shape["d_ff"])
        if shape["pass"] == "forward":
            yield moving("swiglu", [x], [y]), took_s
        else:
            yield moving("swiglu_backward", [y, x], [x]), took_s


NORMS = (
    ("rms_norm", "rms_norm", 8_192),
    ("rms_norm", "rms_norm-wide", 65_536),
    ("layer_norm", "layer_norm", 8_192),
    ("layer_norm", "layer_norm-wide", 65_536),
)
"""A file of each, and to which width it has their present form."""


def norms():
    for norm, file, widest in NORMS:
        for shape, took_s in timed(f"23-h100-kernel-speed-{file}"):
            if shape["width"] > widest:
                continue
            n = 2 if shape["pass"].endswith("added") else 1
            x, weight = tensor(shape["rows"], shape["width"]), tensor(shape["width"])
            if shape["pass"].startswith("forward"):
                yield moving(f"add_{norm}", [*[x] * n, weight], [x] * n), took_s
            else:
                yield moving(f"add_{norm}_backward", [*[x] * (1 + n), weight], [x]), took_s


def rope():
    for shape, took_s in timed("22-h100-kernel-speed-rope"):
        heads = shape["heads"] + shape["kv_heads"]
        if shape["pass"] == "forward":
            x = tensor(shape["batch"], shape["seq_len"], heads * shape["head_dim"])
            yield moving("rope", [x], [x]), took_s


def losses():
    for shape, took_s in timed("23-h100-kernel-speed-cross_entropy"):
        logits = tensor(shape["tokens"], shape["vocabulary"])
        if shape["pass"] == "backward":
            yield moving("cross_entropy_backward_over_logits", [logits], [logits]), took_s


CASE = ModelCase(
    model=model("small"),
    workload=Workload(batch_size=1, seq_len=128),
    configuration=Configuration(precision="bf16"),
    device="cuda",
)
KERNELS = (swiglu, norms, rope, losses)


@pytest.mark.parametrize("kernels", KERNELS)
def test_what_moves_much_takes_what_is_predicted(kernels, h100):
    ratios = []
    for operator, took_s in kernels():
        if operator.bytes_read + operator.bytes_written >= LARGE_BYTES:
            ratios.append(took_s / cost(operator, of_case(CASE), h100).device_s)
    assert len(ratios) >= 3
    assert 0.9 < min(ratios) <= max(ratios) < 1.15
    assert 0.95 < median(ratios) < 1.08


def test_only_what_was_so_timed_is_taken_for_measured():
    """Those of the fused step of decode in whole steps (`test_fused_step`)."""
    seen = {operator.name for kernels in KERNELS for operator, _ in kernels()}
    in_steps = {f"peakward.{name}" for name in decode_step.KERNELS}
    assert TIMED - {"peakward.rope_"} - in_steps == seen
    assert not TIMED & NEVER_MEASURED
