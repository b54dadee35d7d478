"""Prints what Inductor makes of compiled blocks for an H100, without one.

    python tests/unit/prediction/operators/compiled/inductor.py CASE…

CASE is a `ModelCase` as JSON. Inductor is told that the CPU is a GPU whose kernels Triton writes; what it
wrote is read, and nothing of it is launched. Peakward's operators give what their fake kernels give.
Printed is a list for each CASE, of `[phase, kernel, what it reads, what it writes]` of one block, by
elements and types; of an operator of Peakward's the name alone.
"""

import importlib
import json
import os
import pkgutil
import re
import sys
from types import SimpleNamespace

os.environ.pop("TRITON_INTERPRET", None)
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

import msgspec
import torch
import torch._inductor.graph
from torch._inductor import async_compile, config, ir, scheduler
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.runtime.hints import DeviceProperties
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

import peakward.kernels.ops
from peakward.kernels.ops.calling import Operator
from peakward.lab.levers.prepare import prepare
from peakward.records.case import ModelCase

H100 = DeviceProperties(
    type="cuda", index=0, multi_processor_count=132, cc=90, major=9,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
    warp_size=32,
)  # fmt: skip
WRITTEN: list[str] = []
"""The code of each graph."""


def pretend() -> None:
    """That a CPU is a GPU, to Inductor alone."""
    config.cpu_backend = "triton"
    config.compile_threads = 1
    config.force_pointwise_cat = True  # As on a GPU for so few tensors.
    for name, module in list(sys.modules.items()):
        if name.startswith("torch._inductor") and hasattr(module, "is_gpu"):
            module.is_gpu = lambda device: device in ("cpu", "cuda")
    ir.is_cpu = lambda x: False
    scheduler.device_need_guard = lambda device: False
    scheduler._is_gpu_triton_backend = lambda one, other: True
    scheduler.Scheduler.create_backend = lambda self, device: TritonScheduling(self)
    DeviceProperties.create = staticmethod(lambda device: H100)
    async_compile.AsyncCompile.triton = lambda *_, **__: SimpleNamespace(run=lambda *_, **__: None)
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
            get_benchmarker=lambda: None,
        )
    )


def keep_code() -> None:
    made = torch._inductor.graph.GraphLowering.codegen

    def codegen(self):
        code = made(self)
        WRITTEN.append(code[0].value)
        return code

    torch._inductor.graph.GraphLowering.codegen = codegen


def start_no_operator() -> None:
    for found in pkgutil.walk_packages(peakward.kernels.ops.__path__, "peakward.kernels.ops."):
        if found.name.endswith((".api", ".operators")):
            for each in vars(importlib.import_module(found.name)).values():
                if isinstance(each, Operator):
                    fake = each.registered._abstract_fn or (lambda *_, **__: None)
                    each.registered.register_kernel("cpu")(
                        lambda *a, _fake=fake, **k: _fake(*a, **k)
                    )


def kernels(code: str) -> list[list]:
    """Of one graph, in the order of their launches."""
    before, _, call = code.partition("def call(")
    elements: dict[str, int] = {}
    for name, shape in re.findall(r"(\w+) = empty_strided_\w+\(\((.*?)\), \(", call):
        elements[name] = count(shape)
    for name, shape in re.findall(r"assert_size_stride\((\w+), \((.*?)\), \(", call):
        elements[name] = count(shape)
    for name, shape in re.findall(r"(\w+) = reinterpret_tensor\(\w+, \((.*?)\), \(", call):
        elements.setdefault(name, count(shape))
    for name, source in re.findall(r"(\w+) = (\w+); del \w+  # reuse", call):
        elements.setdefault(name, elements[source])
    signatures = {
        name: [(each, kind) for each, kind in re.findall(r"'(\w+)': '(\S*?)'", signature)]
        for signature, name in re.findall(
            r"'signature': \{(.*?)\}.*?def (triton_\w+)\(", before, flags=re.DOTALL
        )
    }
    found = []
    for line in call.splitlines():
        if own := re.match(r"\s+(?:\w+ = )?torch\.ops\.peakward\.(\w+)", line):
            found.append([own[1], [], []])
        if launch := re.search(r"(triton_\w+)\.run\((.*?), stream=", line):
            found.append(traffic(launch[1], launch[2], signatures, elements))
    return found


def traffic(name: str, arguments: str, signatures: dict, elements: dict) -> list:
    given = re.sub(r"reinterpret_tensor\((\w+), \(.*?\), \(.*?\), \d+\)", r"\1", arguments)
    read, written = [], []
    for (parameter, kind), argument in zip(signatures[name], given.split(", "), strict=False):
        if "ptr" in parameter:
            operand = f"{elements[argument]} {kind.lstrip('*')}"
            if not parameter.startswith("out_"):
                read.append(operand)
            if not parameter.startswith("in_ptr"):
                written.append(operand)
    loop = "pointwise" if name.startswith("triton_poi") else "reduction"
    return [loop, sorted(read), sorted(written)]


def count(shape: str) -> int:
    n = 1
    for each in shape.split(","):
        n *= int(each) if each.strip() else 1
    return n


def of_block(case: ModelCase) -> list[list]:
    """The first graph is the block's forward, the last its backward, if there is one."""
    WRITTEN.clear()
    torch._dynamo.reset()
    with prepare(msgspec.structs.replace(case, device="cpu")) as step:
        step.step()
    found = [["forward", *each] for each in kernels(WRITTEN[0])]
    if case.workload.pass_ != "forward":
        found += [["backward", *each] for each in kernels(WRITTEN[-1])]
    return found


if __name__ == "__main__":
    pretend()
    keep_code()
    start_no_operator()
    print(
        json.dumps([of_block(msgspec.json.decode(each, type=ModelCase)) for each in sys.argv[1:]])
    )
