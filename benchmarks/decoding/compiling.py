"""Kernels compiled to Triton's cache on disk before they are timed, in processes that need no GPU."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any, NamedTuple

from decoding.cuts import OTHER_SPLITS, SPLITS, ahead_in, candidates, rule
from decoding.launches import CACHES, FORMATS, POSITIONS, Around, Kernel, matrix, shape_kernels
from peakward.kernels.ops.decode_step.triton.settings import MULTIPROCESSORS, split_for
from peakward.models import presets


class Job(NamedTuple):
    """A kernel and the cut to compile it by, or where it is None attention and a split."""

    model: str
    kernel: Kernel | None
    cut: Any
    kept: str = "bf16"


def jobs_of(cases: list[tuple[str, str]]) -> list[Job]:
    """The jobs of a sweep over these cases, the widest kernels first."""
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


def jobs_by_rule(cases: list[tuple[str, str]]) -> list[Job]:
    """The jobs of whole steps as the rules cut them, with attention to several capacities as the phase
    `caches` cuts it."""
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


def compile_ahead(jobs: list[Job], workers: int) -> list[str]:
    """Compiles the jobs in so many processes.

    Returns:
        The jobs that failed, in words.
    """
    parts = [jobs[each::workers] for each in range(workers)]
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_pretend) as pool:
        return [each for found in pool.map(compile_some, parts) for each in found]


def compile_some(jobs: list[Job]) -> list[str]:
    """Compiles the jobs in this process, where `_pretend` was called.

    Returns:
        The jobs that failed, in words.
    """
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


def _pretend() -> None:
    """Has Triton compile for compute capability 9.0 what is launched in this process, and launch nothing."""
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
