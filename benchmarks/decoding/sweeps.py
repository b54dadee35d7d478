"""Kernels timed alone, each in a chain of itself over weights that no cache holds."""

from functools import partial
from operator import itemgetter

import triton

from decoding.cuts import SPLITS, ahead_in, candidates
from decoding.graphs import Report, chain_s, told
from decoding.launches import FORMATS, POSITIONS, Around, Kernel, copies, n_bytes, shape_kernels
from peakward.kernels.ops.decode_step.triton import launch as kernels
from peakward.kernels.ops.decode_step.triton.settings import THEN_BYTES, Cut, Split


def sweep(report: Report, name: str, formats: set[int]) -> dict[Kernel, list[Cut]]:
    """Times each kernel of a model by each candidate, dense ones always, since the head is dense.

    Returns:
        The cuts of each kernel, the fastest first.
    """
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
    """Times attention by each of `SPLITS`.

    Returns:
        Those that did not fail, the fastest first.
    """
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


def ablate(report: Report, name: str, best: dict[Kernel, list[Cut]], what: str) -> None:
    """Times the fastest cut of each kernel alone, as it is or without what may make it fast.

    A change to the kernels stays for the rest of the process, so each `what` takes a process of its own.

    Args:
        best: the cuts of each kernel, the fastest first.
        what: `as-is`; `not-dependent`, without dependent launch; `wait-first`, with weights loaded behind the
            wait; or `no-prefetch`, where a kernel brings neither its own blocks nor the next matrix into the
            L2.
    """
    from peakward.kernels.ops.decode_step.triton import products

    if what == "not-dependent":
        kernels.dependent = lambda: {"DEPENDENT": False}
    elif what == "wait-first":
        products.launch_the_next = _launch_and_wait
    around = Around(name, "cuda")
    own = {each for format_ in range(len(FORMATS)) for each in shape_kernels(name, format_)}
    for kernel in best.keys() & own:
        held, cut = copies(kernel), best[kernel][0]
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
