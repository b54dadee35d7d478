"""Advice on traces of many devices: nothing that the device lacks."""

import json

import pytest

from peakward.api.traces import findings as told
from peakward.api.traces import trace
from peakward.levers.catalogue import LEVERS, lacking, lever
from peakward.records.device import Accelerator

KERNELS = {
    "volta_sgemm_128x64_nn": ("aten::mm", 400),
    "softmax_warp_forward<float, float, float, 10, false, false>": ("aten::_softmax", 200),
    "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>": ("aten::add", 300),
    "unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>": ("aten::copy_", 200),
}
DEVICES = {
    "Tesla V100-SXM2-16GB": (7, 0),
    "Tesla T4": (7, 5),
    "NVIDIA A100-SXM4-40GB": (8, 0),
    "NVIDIA L4": (8, 9),
    "NVIDIA H100 80GB HBM3": (9, 0),
    "NVIDIA B200": (10, 0),
    "NVIDIA GeForce RTX 3060": (8, 6),
    "Tesla P100-PCIE-16GB": (6, 0),
    "AMD Instinct MI300X": (9, 4),
    "AMD Instinct MI250X": (9, 0),
    "Some GPU of tomorrow": None,
}


def a_step(path, name, capability):
    """A step of a model whose softmax, casts and additions are kernels of their own."""
    driver = "hip" if name.startswith("AMD") else "cuda"
    events, at = [], 0
    for repeat in range(3):
        for kernel, (op, length) in KERNELS.items():
            ids = {"correlation": at + 1}
            host = {"ph": "X", "pid": 1, "tid": 1}
            events += [
                host | {"cat": "cpu_op", "name": op, "ts": at, "dur": 50},
                host | {"cat": "cuda_runtime", "name": f"{driver}LaunchKernel", "ts": at + 5, "dur": 5,
                        "args": ids},
                {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": kernel, "ts": at + 20,
                 "dur": length, "args": ids | {"device": 0, "stream": 7}},
            ]  # fmt: skip
            at += length + (40 if repeat else 400)
    device = {"id": 0, "name": name, "totalGlobalMem": 17_000_000_000}
    if capability is not None:
        device |= {"computeMajor": capability[0], "computeMinor": capability[1]}
    path.write_text(
        json.dumps({"deviceProperties": [device], "traceEvents": events}), encoding="utf-8"
    )
    return path


def findings(path):
    return {each.code: each for each in told(trace(path)).findings}


@pytest.mark.parametrize(("name", "capability"), DEVICES.items())
def test_no_finding_names_a_lever_that_the_device_lacks(tmp_path, name, capability):
    path = a_step(tmp_path / "trace.json", name, capability)
    kind = trace(path).accelerator
    assert kind.vendor == ("amd" if name.startswith("AMD") else "nvidia")
    assert kind.compute_capability == (None if name.startswith("AMD") else capability)
    found = findings(path)
    assert {"ATTN001", "BW001"} <= set(found)
    named = {gain.lever for each in found.values() for gain in each.gains}
    assert {each for each in named if lacking(lever(each), kind)} == set()
    assert "sdpa" in named


def test_what_a_known_device_has_is_offered(tmp_path):
    def offered(name):
        found = findings(a_step(tmp_path / "trace.json", name, DEVICES[name]))
        return {gain.lever for gain in found["ATTN001"].gains}

    assert offered("NVIDIA H100 80GB HBM3") >= {"sdpa-cudnn", "flash", "flash-hopper"}
    assert offered("NVIDIA B200") & {"flash", "flash-hopper"} == {"flash"}
    assert offered("NVIDIA GeForce RTX 3060") & {"flash", "flash-hopper"} == {"flash"}
    for name in ("Tesla T4", "AMD Instinct MI300X", "Some GPU of tomorrow"):
        assert offered(name) == {"sdpa"}


@pytest.mark.parametrize(
    ("on", "has", "lacks"),
    [
        (
            Accelerator(vendor="nvidia", compute_capability=(7, 0)),
            "fp16-mixed",
            "bf16 tf32 flash fp8",
        ),
        (
            Accelerator(vendor="nvidia", compute_capability=(8, 0)),
            "tf32 bf16 flash sdpa-cudnn",
            "fp8",
        ),
        (
            Accelerator(vendor="nvidia", compute_capability=(6, 0)),
            "sdpa cuda-graphs",
            "compile fp16-mixed",
        ),
        (Accelerator(vendor="amd"), "bf16 bf16-mixed compile sdpa", "sdpa-cudnn flash-hopper tf32"),
        (Accelerator(), "compile sdpa cuda-graphs fp16-mixed", "bf16 tf32 flash sdpa-cudnn fp8"),
    ],
)
def test_what_exists_on_a_kind_of_gpu(on, has, lacks):
    assert [each for each in has.split() if lacking(lever(each), on)] == []
    assert [each for each in lacks.split() if not lacking(lever(each), on)] == []


def test_an_unknown_gpu_has_what_every_catalogued_one_has():
    from peakward.hardware.devices import devices

    for each in LEVERS:
        if lacking(each, Accelerator()) is None:
            assert [it.key for it in devices() if lacking(each, it.accelerator)] == []


@pytest.mark.parametrize(
    ("name", "said", "never"),
    [
        ("Tesla V100-SXM2-16GB", "autocast to fp16", ("tf32", "bf16")),
        ("NVIDIA A100-SXM4-40GB", "tf32, or autocast to bf16", ()),
    ],
)
def test_the_words_of_advice_are_of_the_device_too(tmp_path, name, said, never):
    path = a_step(tmp_path / "trace.json", name, DEVICES[name])
    memory = {"Tesla V100-SXM2-16GB": 16_945_512_448, "NVIDIA A100-SXM4-40GB": 42_297_524_224}[name]
    path.write_text(path.read_text("utf-8").replace("17000000000", str(memory)), encoding="utf-8")
    found = findings(path)["PREC001"]
    assert said in found.advice
    assert not any(word in found.advice for word in never)
