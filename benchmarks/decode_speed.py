"""One step of decode: the chain of fused kernels against the step of separate ones, and its kernels alone.

    python benchmarks/decode_speed.py --out results/decode-speed.json [--phases compile,sweep,steps]

`--phases` names what is done:

- `compile` compiles what the other phases launch, in processes of their own.
- `sweep` times every kernel of a model alone, by each candidate cut, in a chain of itself over weights that
  no cache holds.
- `ablate` times the fastest cut of each kernel in the same way: as it is, or by `--ablation` without
  dependent launch, with weights loaded behind the wait, or without prefetch into the L2, where a kernel
  brings neither its own blocks nor the next matrix.
- `steps` times whole steps in turns, as a share of the copy's bandwidth that was measured in the same
  process, and tells how far their logits are from those of the same weights in fp32.
- `refine` tries the fastest cuts of each kernel in whole steps.
- `caches` does as `steps` behind each of `--positions`, on caches in bf16 and in int8, with attention cut up
  in several ways beside int4 weights.
- `peer` times the whole step in plain torch, compiled with CUDA graphs, as gpt-fast does it.

JSON is written after every item.
"""

import argparse
import json
import os
import statistics
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn

import decode_peer
from peakward.kernels.ops.decode_step.triton import launch as kernels
from peakward.kernels.ops.decode_step.triton.launch import Held, Matrix, first_of
from peakward.kernels.ops.decode_step.triton.settings import (
    POSITIONS_AHEAD,
    Cut,
    Split,
    cut_for,
    split_for,
)
from peakward.lab.inference.cache import KVCache
from peakward.lab.inference.fused_step import Cuts, FusedStep
from peakward.lab.inference.text import weight_bytes
from peakward.lab.levers.model_step import ModelStep
from peakward.lab.models.decoder import Decoder, rotation
from peakward.lab.models.layers import QuantisedLinear
from peakward.models import presets
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.model_shape import ModelShape

POSITIONS = 1024
FORMATS = ("dense", "int8", "int4:128")
MODELS = ("2.7B", "small", "llama-2-7b")
MULTIPROCESSORS = 132
COLD_BYTES = 300 << 20
"""Of distinct weights that a chain goes through: six times the L2."""


class Kernel(NamedTuple):
    """One kernel of a layer, of a matrix (n, k)."""

    name: str
    n: int
    k: int
    format_: int


def shape_kernels(name: str, format_: int) -> list[Kernel]:
    shape = presets.model(name)
    heads = shape.n_heads + 2 * shape.n_kv_heads
    head = [Kernel("head", shape.vocab_size, shape.d_model, 0)] if format_ == 0 else []
    return [
        *head,
        Kernel("qkv", heads * shape.head_dim, shape.d_model, format_),
        Kernel("out", shape.d_model, shape.n_heads * shape.head_dim, format_),
        Kernel("up", 2 * shape.d_ff, shape.d_model, format_),
        Kernel("down", shape.d_model, shape.d_ff, format_),
    ]


# block, lanes, depth, warps, programs of a multiprocessor (and registers): the best of wider sweeps.
SHORTLIST = {
    0: (
        (4, 128, 3, 4, 3), (4, 128, 3, 4, 4), (8, 128, 3, 8, 2), (8, 64, 2, 4, 3), (4, 256, 2, 8, 2),
        (2, 256, 3, 8, 2),
    ),
    1: (
        (16, 32, 3, 4, 4), (8, 64, 3, 4, 4), (8, 64, 1, 4, 5), (8, 32, 3, 4, 4), (4, 256, 3, 8, 2),
        (4, 128, 3, 4, 4), (16, 32, 3, 8, 2), (32, 32, 2, 8, 1),
    ),
    2: (
        (16, 32, 1, 4, 4, 128), (8, 32, 1, 4, 4), (8, 32, 2, 4, 4), (8, 64, 1, 4, 4),
        (8, 64, 2, 4, 4, 128), (4, 128, 1, 4, 3), (4, 128, 1, 4, 4, 128), (16, 64, 1, 4, 3),
    ),
}  # fmt: skip
AHEAD = ((0, False), (1, False), (2, False), (1, True), (2, True))
"""Blocks that are brought before the wait, and whether a program goes on to."""
THEN_BYTES = 4 << 20
"""Of the next matrix that a kernel in a chain brings ahead."""


def candidates(kernel: Kernel) -> list[Cut]:
    """Cuts to time. The number of programs is not compiled in."""
    found = {rule(kernel): None}
    for block, lanes, depth, *fill in SHORTLIST[kernel.format_]:
        per_word = (2, 4, 8)[kernel.format_]
        held = kernel.k / lanes / (1 if per_word == 2 else 2)
        if held <= 96:
            for ahead, stays in AHEAD:
                cut = Cut(block, lanes, depth, ahead, *fill)._replace(stays_ahead=stays)
                if depth <= cut.chunks(kernel.k, per_word):
                    found[cut] = None
    return list(found)


def rule(kernel: Kernel) -> Cut:
    per_word = (2, 4, 8)[kernel.format_]
    return cut_for(n=kernel.n, k=kernel.k, per_word=per_word)


SPLITS = [
    Split(*each)
    for each in (
        (8, 128, 4, 1),
        (8, 128, 8, 1),
        (16, 64, 4, 1),
        (8, 64, 4, 1),
        (12, 64, 4, 1),
        (4, 128, 8, 1),
    )
]
CACHES: dict[str, torch.dtype | None] = {"bf16": None, "int8": torch.int8}
"""How a cache holds its elements."""
OTHER_SPLITS = {
    "bf16": [
        Split(*each) for each in ((8, 128, 4, 1), (8, 128, 8, 1), (12, 64, 4, 3), (16, 64, 4, 1))
    ],
    "int8": [
        Split(*each) for each in ((8, 128, 4, 1), (8, 128, 8, 1), (12, 64, 4, 3), (16, 64, 4, 2))
    ],
}
"""Beside the rule's."""


def ahead_in(split: Split, shape: ModelShape) -> Split:
    """With as many positions ahead as the rule brings."""
    ahead = POSITIONS_AHEAD // (shape.n_kv_heads * split.splits) // 8 * 8
    return split._replace(ahead=ahead)


def made(*size: int, dtype: torch.dtype, device: str) -> Tensor:
    if device == "meta":
        return torch.empty(size, dtype=dtype, device=device)
    if dtype == torch.int32:
        return torch.randint(-(2**31), 2**31 - 1, size, dtype=dtype, device=device)
    if dtype == torch.int8:
        return torch.randint(-127, 128, size, dtype=dtype, device=device)
    return torch.randn(size, device=device).mul_(0.02).to(dtype)


def matrix(kernel: Kernel, device: str) -> Matrix:
    n, k = kernel.n, kernel.k
    if kernel.format_ == 0:
        return Matrix(made(n, k, dtype=torch.bfloat16, device=device), None, n, k)
    if kernel.format_ == 1:
        stored = made(n, k, dtype=torch.int8, device=device)
        return Matrix(stored, made(1, n, dtype=torch.bfloat16, device=device), n, k)
    stored = made(k // 128, n, 16, dtype=torch.int32, device=device)
    return Matrix(stored, made(k // 128, n, dtype=torch.bfloat16, device=device), n, k)


def n_bytes(kernel: Kernel) -> float:
    return kernel.n * kernel.k * (2.0, 1.0, 0.5 + 2 / 128)[kernel.format_]


class Around:
    """What a layer's kernels need beside their matrix."""

    def __init__(self, name: str, device: str, kept: str = "bf16") -> None:
        shape = presets.model(name)
        self.shape = shape
        of = partial(made, dtype=torch.bfloat16, device=device)
        behind = 0 if CACHES[kept] is None else 2 * shape.n_kv_heads
        self.x, self.gain = of(1, shape.d_model), of(shape.d_model)
        self.mixed, self.gated = of(1, shape.n_heads * shape.head_dim), of(1, shape.d_ff)
        self.q = of(1, shape.n_heads + behind, shape.head_dim)
        self.cos, self.sin = (of(POSITIONS, shape.head_dim // 2) for _ in range(2))
        self.position = torch.full((1,), POSITIONS - 1, device=device)
        layers = 1 if device == "meta" else 32
        size = (layers, 1, shape.n_kv_heads, POSITIONS, shape.head_dim)
        stored = CACHES[kept] or torch.bfloat16
        elements = [made(*size, dtype=stored, device=device) for _ in range(2)]
        scales = [
            made(*size[:-1], dtype=torch.float32, device=device) for _ in range(2 if behind else 0)
        ]
        self.held = [Held(*each) for each in zip(*elements, *scales, strict=True)]
        pieces = (shape.n_kv_heads, 64, shape.n_heads // shape.n_kv_heads)
        self.parts = torch.empty(*pieces, shape.head_dim, device=device)
        self.shares = torch.empty(*pieces, 2, device=device)
        self.arrived = torch.zeros(shape.n_kv_heads, dtype=torch.int32, device=device)
        self.out = of(1, shape.n_heads, shape.head_dim)
        self.nothing = first_of(Matrix(self.gain[None], None, 1, shape.d_model), 0)

    def start(self, kernel: Kernel, held: Matrix, then: Matrix, cut: Cut, then_bytes: int) -> None:
        how = {"cut": cut, "n_programs": MULTIPROCESSORS * cut.programs}
        following = first_of(then, then_bytes, halves=kernel.name == "up")
        if kernel.name == "qkv":
            kernels.rotated(
                self.x, self.gain, 1e-5, held, None, self.cos, self.sin, self.position, self.q,
                self.held[0], **how,
            )  # fmt: skip
        elif kernel.name == "head":
            logits = self.x.new_empty(len(self.x), kernel.n)
            kernels.product(
                self.x, self.gain, 1e-5, held, logits, adds=False, then=following, **how
            )
        elif kernel.name == "up":
            kernels.gated(self.x, self.gain, 1e-5, held, self.gated, then=following, **how)
        else:
            x = self.mixed if kernel.name == "out" else self.gated
            kernels.product(x, None, 1e-5, held, self.x, adds=True, then=following, **how)

    def next_of(
        self, kernel: Kernel, held: list[Matrix], cut: Cut, then_bytes: int, each: int
    ) -> None:
        """Number `each` of a chain that goes through these matrices."""
        following = held[(each + 1) % len(held)]
        self.start(kernel, held[each % len(held)], following, cut, then_bytes)

    def attend(self, layer: int, split: Split) -> None:
        kernels.attention(
            self.q, self.held[layer % len(self.held)], self.position, self.parts, self.shares,
            self.arrived, self.out, then=self.nothing, split=split,
        )  # fmt: skip


# --- compiling ahead, in processes of their own


def _pretend() -> None:
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda _device: 0,
            get_benchmarker=lambda: None,
        )
    )
    run = JITFunction.run

    def compiled(self, *arguments, grid, warmup, **options):  # noqa: ARG001 (always)
        return run(self, *arguments, grid=grid, warmup=True, **options)

    JITFunction.run = compiled


class Job(NamedTuple):
    """A kernel to compile; without one attention, cut up so."""

    model: str
    kernel: Kernel | None
    cut: Any
    kept: str = "bf16"


def compile_some(jobs: list[Job]) -> list[str]:
    """Compiles to Triton's cache on disk; the failures, in words."""
    failed = []
    around: dict[tuple[str, str], Around] = {}
    for job in jobs:
        key = (job.model, job.kept)
        held = around[key] = around.get(key) or Around(job.model, "meta", job.kept)
        try:
            if job.kernel is None:
                held.attend(0, job.cut)
            else:
                own = matrix(job.kernel, "meta")
                held.start(job.kernel, own, own, job.cut, 0)
        except Exception as error:  # noqa: BLE001 (told, and left out)
            failed.append(f"{job}: {str(error)[-300:]}")
    return failed


def compile_ahead(jobs: list[Job], workers: int) -> list[str]:
    parts = [jobs[each::workers] for each in range(workers)]
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_pretend) as pool:
        return [each for found in pool.map(compile_some, parts) for each in found]


# --- timing


def graph_of(body: Callable[[], None]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


def replay_s(graph: torch.cuda.CUDAGraph, n: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(n):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / n / 1e3


def chain_s(start: Callable[[int], None], n: int) -> float:
    """The time of one of n kernels in a chain."""

    def body() -> None:
        for each in range(n):
            start(each)

    graph = graph_of(body)
    replay_s(graph, 2)
    return min(replay_s(graph, 3) for _ in range(3)) / n


def copy_bytes_per_s() -> float:
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    # Added, for a copy in a graph is not the fast kernel.
    graph = graph_of(lambda: torch.add(source, 0.0, out=target))
    replay_s(graph, 3)
    best = min(replay_s(graph, 5) for _ in range(5))
    return 2 * source.nbytes / best


def copies(kernel: Kernel) -> list[Matrix]:
    n = max(4, min(96, int(COLD_BYTES / n_bytes(kernel)) + 1))
    return [matrix(kernel, "cuda") for _ in range(n)]


class Report:
    """What was found so far, on disk after every item."""

    def __init__(self, path: Path) -> None:
        self.path, self.held, self.began = path, {"items": []}, monotonic()

    def add(self, **item: Any) -> None:
        item["at_s"] = round(monotonic() - self.began, 1)
        self.held["items"].append(item)
        self.path.write_text(json.dumps(self.held, indent=1))
        print(json.dumps(item), flush=True)


def sweep(report: Report, name: str, formats: set[int]) -> dict[Kernel, list[Cut]]:
    around, best = Around(name, "cuda"), {}
    bandwidth = report.held["copy_bytes_per_s"]
    for format_ in sorted({0, *formats}):
        for kernel in shape_kernels(name, format_):
            held, rows = copies(kernel), []
            for cut in candidates(kernel):
                with told(report, f"sweep {kernel} {cut}"):
                    start = partial(around.next_of, kernel, held, cut, THEN_BYTES)
                    rows.append((chain_s(start, max(24, len(held))), cut))
            rows.sort(key=itemgetter(0))
            best[kernel] = [cut for _, cut in rows]
            report.add(
                phase="sweep", model=name, kernel=kernel._asdict(),
                floor_us=n_bytes(kernel) / bandwidth * 1e6,
                rows=[[round(took * 1e6, 2), *cut] for took, cut in rows],
            )  # fmt: skip
            del held
    return best


def sweep_attention(report: Report, name: str) -> list[Split]:
    around = Around(name, "cuda")
    rows = []
    for split in (ahead_in(each, around.shape) for each in SPLITS):
        try:
            rows.append((chain_s(lambda each, s=split: around.attend(each, s), 64), split))
        except Exception as error:  # noqa: BLE001 (told, and left out)
            report.add(phase="sweep", split=split, error=str(error)[-200:])
    rows.sort()
    shape = around.shape
    bytes_ = 2 * shape.n_kv_heads * shape.head_dim * POSITIONS * 2
    report.add(
        phase="sweep", model=name, kernel="attention",
        floor_us=bytes_ / report.held["copy_bytes_per_s"] * 1e6,
        rows=[[round(took * 1e6, 2), *split] for took, split in rows],
    )  # fmt: skip
    return [split for _, split in rows]


# --- ablation: each in a process of its own, where the kernels are compiled so


def ablate(report: Report, name: str, best: dict[Kernel, list[Cut]], what: str) -> None:
    """`what`: as it is, without dependent launch, behind the wait, or without prefetch into the L2, where a
    kernel brings neither its own blocks nor the next matrix."""
    from peakward.kernels.ops.decode_step.triton import products

    if what == "not-dependent":
        kernels.dependent = lambda: {"DEPENDENT": False}
    elif what == "wait-first":
        products.launch_the_next = _launch_and_wait
    around = Around(name, "cuda")
    for kernel, cuts in best.items():
        held, cut = copies(kernel), cuts[0]
        tried, then_bytes = cut, THEN_BYTES
        if what == "no-prefetch":
            tried, then_bytes = cut._replace(ahead=0), 0
        took = chain_s(partial(around.next_of, kernel, held, tried, then_bytes), max(24, len(held)))
        report.add(phase="ablate", what=what, kernel=kernel._asdict(), cut=tried, us=took * 1e6)


@triton.jit
def _launch_and_wait(DEPENDENT: triton.language.constexpr):
    if DEPENDENT:
        triton.language.extra.cuda.gdc_launch_dependents()
        triton.language.extra.cuda.gdc_wait()


# --- whole steps


def case_of(name: str, weights: str, attention: str) -> ModelCase:
    return ModelCase(
        model=presets.model(name),
        workload=Workload(batch_size=1, seq_len=POSITIONS, pass_="decode"),
        configuration=Configuration(
            precision="bf16",
            attention=attention,
            cuda_graphs=True,
            norm="fused",
            rope="fused",
            swiglu="fused",
            weights=weights,
        ),
        device="cuda",
    )


@torch.no_grad()
def exact_logits(model: Decoder, ids: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """The step in fp32 from the same stored numbers, one token at the cache's last position."""
    shape = model.shape

    def weight(linear: nn.Linear) -> Tensor:
        if isinstance(linear, QuantisedLinear):
            return linear.dequantised(torch.float32)
        return linear.weight.float()

    def normed(x: Tensor, norm: nn.Module) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], norm.weight.float(), shape.norm_eps)

    x = model.embedding.weight[ids].float()
    cos, sin = (each[-1] for each in rotation(shape, keys[0].shape[2], x))
    for block, kept_k, kept_v in zip(model.blocks, keys, values, strict=True):
        qkv = F.linear(normed(x, block.attention_norm), weight(block.attention.qkv))
        heads = qkv.view(len(ids), -1, shape.head_dim)
        q, new_k, new_v = heads.split((shape.n_heads, shape.n_kv_heads, shape.n_kv_heads), 1)
        low, high = torch.cat((q, new_k), 1).chunk(2, -1)
        turned = torch.cat((low * cos - high * sin, high * cos + low * sin), -1)
        q, new_k = turned.split((shape.n_heads, shape.n_kv_heads), 1)
        k, v = kept_k.float(), kept_v.float()
        k[:, :, -1], v[:, :, -1] = new_k, new_v
        group = shape.n_heads // shape.n_kv_heads
        wide = (each.repeat_interleave(group, 1) for each in (k, v))
        mixed = F.scaled_dot_product_attention(q[:, :, None], *wide)
        x = x + F.linear(mixed.flatten(1), weight(block.attention.out))
        gate, up = F.linear(normed(x, block.ff_norm), weight(block.ff.up)).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, weight(block.ff.down))
    return F.linear(normed(x, model.readout.norm), model.readout.head.weight.float())


def apart(got: Tensor, exact: Tensor) -> float:
    return float((got.float() - exact).norm() / exact.norm())


@torch.no_grad()
def steps(
    report: Report,
    name: str,
    weights: str,
    best: dict[Kernel, list[Cut]],
    splits: list[Split],
) -> None:
    """Arms in turns: separate kernels, the fused step by its rule, and by the sweep's best cuts."""
    base = ModelStep(case_of(name, weights, "flash-decode"), torch.bfloat16)
    model, cache = base.model, base.cache
    held = [each.storage for each in cache.layers]
    keys, values = [each.keys for each in held], [each.values for each in held]
    bytes_ = weight_bytes([model]) + sum(each.n_bytes for each in held)
    base.step()
    arms: dict[str, Callable[[], Any]] = {"separate": base.step}
    ids = torch.randint(0, model.shape.vocab_size, (1,), device="cuda")
    position = torch.full((1,), POSITIONS - 1, device="cuda")
    exact = exact_logits(model, ids, keys, values)
    found: dict[str, Any] = {"separate": apart(model(ids[:, None], cache=cache)[:, -1], exact)}
    plain = FusedStep(model, held)
    chosen = {"rule": plain.cuts}
    rows = fastest(name, weights, best, splits)
    if rows:
        best_alone = {kernel: found[0] for kernel, found in rows.items()}
        chosen["best alone"] = plain.cuts._replace(**best_alone)
    kept = []
    for label, cuts in chosen.items():
        fused = FusedStep(model, held, cuts)
        first = fused(ids, position)
        found[label] = apart(first, exact)
        made: list[Tensor] = []
        graph = graph_of(lambda fused=fused, made=made: made.append(fused(ids, position)))
        for _ in range(20):
            graph.replay()
        found[f"{label}-repeats"] = torch.equal(made[-1], first)
        kept.append((fused, graph, made))
        arms[label] = graph.replay
    times = in_turns(arms)
    bandwidth = report.held["copy_bytes_per_s"]
    report.add(
        phase="steps", model=name, weights=weights, bytes=bytes_, errors=found,
        roof_per_s=bandwidth / bytes_,
        per_s={arm: round(1 / statistics.median(each), 1) for arm, each in times.items()},
        share={arm: round(bytes_ / statistics.median(each) / bandwidth, 4) for arm, each in times.items()},
        spread={arm: round(max(each) / min(each), 4) for arm, each in times.items()},
        cuts=chosen,
    )  # fmt: skip


def fastest(
    name: str, weights: str, best: dict[Kernel, list[Cut]], splits: list[Split]
) -> dict[str, list[Any]]:
    """Of each kernel of a step its fastest cuts alone, and the fastest with more or less brought ahead;
    nothing where not all were swept."""
    own = [*shape_kernels(name, FORMATS.index(weights)), shape_kernels(name, 0)[0]]
    rows: dict[str, list[Any]] = {}
    for each in own:
        found = best.get(each, [])
        alike = [cut for cut in found if like(cut) == like(found[0])]
        rows[each.name] = list(dict.fromkeys((*found[:REFINED], *alike)))
    rows["attention"] = splits[:REFINED]
    rows["then_bytes"] = [4 << 20, 0, 8 << 20, 16 << 20]
    return rows if all(rows.values()) else {}


def like(cut: Cut) -> Cut:
    """The cut without what it brings ahead."""
    return cut._replace(ahead=0, stays_ahead=False)


REFINED = 3
"""Of a kernel's fastest cuts alone, as many are tried in a whole step."""


@torch.no_grad()
def refine(report: Report, name: str, weights: str, rows: dict[str, list[Any]]) -> None:
    """The whole step with each kernel's fastest cuts alone, one kernel after the other; of two in turns the
    faster stays. A kernel alone overlaps with itself, in a step with others."""
    model = ModelStep(case_of(name, weights, "flash-decode"), torch.bfloat16)
    cache = model.cache
    held = [each.storage for each in cache.layers]
    ids = torch.randint(0, model.model.shape.vocab_size, (1,), device="cuda")
    position = torch.full((1,), POSITIONS - 1, device="cuda")

    def step_of(cuts: Cuts) -> Callable[[], Any]:
        fused = FusedStep(model.model, held, cuts)
        graph = graph_of(lambda: fused(ids, position))
        return lambda graph=graph, _held=fused: graph.replay()

    cuts = FusedStep(model.model, held).cuts
    cuts = cuts._replace(**{kernel: found[0] for kernel, found in rows.items()})
    best, told_rows = step_of(cuts), []
    for kernel, found in rows.items():
        for each in found[1:]:
            tried = cuts._replace(**{kernel: each})
            with told(report, f"refine {name} {weights} {kernel} {each}"):
                step = step_of(tried)
                times = in_turns({"best": best, "tried": step}, turns=4)
                before, after = (statistics.median(times[arm]) for arm in ("best", "tried"))
                told_rows.append([kernel, each, round(before * 1e6, 1), round(after * 1e6, 1)])
                if after < before:
                    best, cuts = step, tried
    took = statistics.median(in_turns({"best": best})["best"])
    report.add(
        phase="refine", model=name, weights=weights, rows=told_rows, us=round(took * 1e6, 1),
        per_s=round(1 / took, 1), cuts=cuts,
    )  # fmt: skip


@torch.no_grad()
def caches(report: Report, name: str, weights: str, lengths: list[int], batch: int) -> None:
    """Arms in turns: separate kernels and the fused step, on caches in bf16 and in int8."""
    model = ModelStep(case_of(name, weights, "flash-decode"), torch.bfloat16).model
    ids = torch.randint(0, model.shape.vocab_size, (batch,), device="cuda")
    for positions in lengths:
        arms, kept, errors, bytes_ = {}, [], {}, {}
        for label, stored in CACHES.items():
            cache = KVCache(
                model.shape, batch_size=batch, capacity=positions, device="cuda", dtype=torch.bfloat16,
                stored=stored, by_kernel=True,
            )  # fmt: skip
            cache.fill(positions - 1, seed=0)
            splits = OTHER_SPLITS[label] if weights == "int4:128" and batch == 1 else []
            of_arms, of_errors = arms_of(model, cache, ids, splits)
            arms |= {f"{arm}, {label}": start for arm, start in of_arms.items()}
            errors |= {f"{arm}, {label}": error for arm, error in of_errors.items()}
            kept_bytes = sum(each.storage.n_bytes for each in cache.layers)
            bytes_[label] = weight_bytes([model]) + kept_bytes
            kept.append(cache)
        times = in_turns(arms)
        bandwidth = report.held["copy_bytes_per_s"]
        report.add(
            phase="caches", model=name, weights=weights, batch=batch, positions=positions,
            bytes=bytes_, errors=errors,
            us={arm: round(statistics.median(each) * 1e6, 1) for arm, each in times.items()},
            share={
                arm: round(bytes_[arm.rsplit(", ", 1)[1]] / statistics.median(each) / bandwidth, 4)
                for arm, each in times.items()
            },
            spread={arm: round(max(each) / min(each), 4) for arm, each in times.items()},
        )  # fmt: skip
        arms.clear()
        del cache, kept
        torch.cuda.empty_cache()


def arms_of(
    model: Decoder, cache: KVCache, ids: Tensor, splits: list[Split]
) -> tuple[dict[str, Callable[[], Any]], dict[str, Any]]:
    """Steps on one cache as graphs, and how far their logits are from those in fp32."""
    held, end = [each.storage for each in cache.layers], cache.length + 1
    widened = [each.widened(torch.bfloat16) for each in held]
    exact = exact_logits(model, ids, *(list(each) for each in zip(*widened, strict=True)))
    position = torch.full((len(ids),), end - 1, device="cuda")
    rule = FusedStep(model, held)
    steps = {
        "separate": lambda: model(ids[:, None], cache=cache)[:, -1],
        "fused": lambda: rule(ids, position),
    }
    for each in splits:
        cuts = rule.cuts._replace(attention=ahead_in(each, model.shape))
        fused = FusedStep(model, held, cuts)
        steps[f"fused {tuple(each[:4])}"] = lambda fused=fused: fused(ids, position)
    arms, errors = {}, {}
    for arm, step in steps.items():
        first, again = step(), []
        errors[arm] = apart(first, exact)
        graph = graph_of(lambda step=step, again=again: again.append(step()))
        for _ in range(20):
            graph.replay()
        # Of a captured step, what it returned while it was captured is where its replays write.
        errors[f"{arm} repeats"] = torch.equal(again[-1], first)
        # A graph holds neither the step's buffers nor the result that it writes.
        arms[arm] = lambda graph=graph, _held=(step, again): graph.replay()
    return arms, errors


def in_turns(arms: dict[str, Callable[[], Any]], turns: int = 6) -> dict[str, list[float]]:
    """Seconds of each arm, every turn in the other order."""
    times: dict[str, list[float]] = {each: [] for each in arms}
    for turn in range(turns):
        for arm in list(arms) if turn % 2 else list(arms)[::-1]:
            times[arm].append(timed_s(arms[arm], 12))
    return times


def timed_s(start: Callable[[], Any], n: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start()
    begin.record()
    for _ in range(n):
        start()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / n / 1e3


# --- the peer


@torch.no_grad()
def peer(report: Report, name: str, weights: str) -> None:
    began = monotonic()
    model, step = decode_peer.compiled(name, weights, POSITIONS)
    for _ in range(4):
        step()
    took = [timed_s(step, 20) for _ in range(8)]
    median = statistics.median(took)
    report.add(
        phase="peer", model=name, weights=weights, per_s=round(1 / median, 1),
        bytes=model.read_bytes(), share=round(
            model.read_bytes() / median / report.held["copy_bytes_per_s"], 4
        ),
        compiled_s=round(monotonic() - began, 1),
    )  # fmt: skip
    torch._dynamo.reset()


@contextmanager
def told(report: Report, what: str) -> Iterator[None]:
    """A failure of one item is an item."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (told)
        traceback.print_exc()
        report.add(phase=what, error=f"{type(error).__name__}: {str(error)[-600:]}")
    torch.cuda.empty_cache()


def chosen(path: Path) -> tuple[dict[Kernel, list[Cut]], dict[str, list[Split]]]:
    """The cuts of the sweeps that an earlier report holds, the fastest first, and of each model's
    attention."""
    best: dict[Kernel, list[Cut]] = {}
    splits: dict[str, list[Split]] = {}
    for item in json.loads(path.read_text())["items"]:
        if item["phase"] == "sweep" and "rows" in item:
            if item["kernel"] == "attention":
                splits[item["model"]] = [Split(*row[1:]) for row in item["rows"]]
            else:
                best[Kernel(**item["kernel"])] = [Cut(*row[1:]) for row in item["rows"]]
    return best, splits


def jobs_by_rule(cases: list[tuple[str, str]]) -> list[Job]:
    """Kernels as the rules cut them, and attention to several capacities as the phase `caches` cuts it."""
    found: dict[Job, None] = {}
    for name, weights in cases:
        shape, format_ = presets.model(name), FORMATS.index(weights)
        own = {*shape_kernels(name, format_), shape_kernels(name, 0)[0]}
        for kernel in sorted(own):
            for kept in CACHES if kernel.name == "qkv" else ("bf16",):
                found[Job(name, kernel, rule(kernel)._replace(programs=1), kept)] = None
        for kept, splits in OTHER_SPLITS.items():
            by_rule = (
                split_for(
                    n_pairs=shape.n_kv_heads, capacity=capacity, n_multiprocessors=MULTIPROCESSORS,
                    narrow=kept == "int8",
                )
                for capacity in (POSITIONS, 4 * POSITIONS)
            )  # fmt: skip
            for each in (*by_rule, *(ahead_in(each, shape) for each in splits)):
                found[Job(name, None, each, kept)] = None
    return list(found)


def jobs_of(cases: list[tuple[str, str]]) -> list[Job]:
    """What is to be compiled for these cases, wide ones first."""
    found: dict[Job, None] = {}
    for name, weights in cases:
        shape, format_ = presets.model(name), FORMATS.index(weights)
        own = shape_kernels(name, format_)
        for kernel in own if format_ == 0 else [*own, shape_kernels(name, 0)[0]]:
            for cut in candidates(kernel):
                found[Job(name, kernel, cut._replace(programs=1))] = None
        splits = [split_for(
            n_pairs=shape.n_kv_heads, capacity=POSITIONS, n_multiprocessors=MULTIPROCESSORS
        )]  # fmt: skip
        for split in (*splits, *(ahead_in(each, shape) for each in SPLITS)):
            found[Job(name, None, split)] = None
    return sorted(found, key=lambda job: -job.kernel.k if job.kernel else 0)


def main(options: argparse.Namespace) -> None:
    report = Report(options.out)
    phases, until = options.phases.split(","), monotonic() + options.budget_s
    report.held |= {"torch": torch.__version__, "triton": triton.__version__}
    cases = [tuple(each.split("/")) for each in options.cases.split(",")]
    if "compile" in phases:
        of_sweep = jobs_of(cases) if "sweep" in phases else []
        of_rules = jobs_by_rule(cases) if {"steps", "caches"} & {*phases} else []
        jobs = list(dict.fromkeys((*of_sweep, *of_rules)))
        failed = compile_ahead(jobs, options.workers)
        report.add(phase="compile", n=len(jobs), failed=failed[:20], n_failed=len(failed))
    report.held |= {
        "device": torch.cuda.get_device_name(),
        "copy_bytes_per_s": copy_bytes_per_s(),
    }
    report.add(phase="copy", bytes_per_s=report.held["copy_bytes_per_s"])
    best, splits = ({}, {}) if options.chosen is None else chosen(options.chosen)
    for name in dict.fromkeys(name for name, _ in cases):
        if "sweep" in phases:
            with told(report, f"sweep {name} attention"):
                splits[name] = sweep_attention(report, name)
            with told(report, f"sweep {name}"):
                formats = {FORMATS.index(weights) for of, weights in cases if of == name}
                best |= sweep(report, name, formats)
        if "ablate" in phases:
            with told(report, "ablate"):
                ablate(report, name, best, options.ablation)
        for of, weights in cases:
            if "steps" in phases and of == name and monotonic() < until:
                with told(report, f"steps {name} {weights}"):
                    steps(report, name, weights, best, splits.get(name, []))
            if "refine" in phases and of == name and monotonic() < until:
                with told(report, f"refine {name} {weights}"):
                    rows = fastest(name, weights, best, splits.get(name, []))
                    refine(report, name, weights, rows)
            if "caches" in phases and of == name and monotonic() < until:
                with told(report, f"caches {name} {weights}"):
                    caches(report, name, weights, options.positions, options.batch)
    if "peer" in phases:
        for name, weights in cases:
            if monotonic() < until:
                with told(report, f"peer {name} {weights}"):
                    peer(report, name, weights)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--phases", default="compile,sweep,steps")
    every = ",".join(f"{name}/{weights}" for name in MODELS for weights in FORMATS)
    parser.add_argument("--cases", default=every, help="MODEL/WEIGHTS,…")
    parser.add_argument(
        "--chosen", type=Path, help="an earlier report whose sweep chooses the cuts"
    )
    parser.add_argument("--batch", type=int, default=1, help="the sequences of the phase caches")
    parser.add_argument("--positions", type=int, nargs="+", default=[1024, 4096, 16_384])
    parser.add_argument(
        "--ablation",
        default="as-is",
        choices=("as-is", "not-dependent", "wait-first", "no-prefetch"),
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--budget-s", type=float, default=90)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(parsed()))
