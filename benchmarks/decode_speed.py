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
import os
import sys
from pathlib import Path
from time import monotonic

import torch
import triton

from decoding.compiling import compile_ahead, jobs_by_rule, jobs_of
from decoding.cuts import fastest, swept
from decoding.graphs import Report, copy_bytes_per_s, told
from decoding.launches import FORMATS, Kernel
from decoding.peer import peer
from decoding.steps import caches, refine, steps
from decoding.sweeps import ablate, sweep, sweep_attention
from peakward.kernels.ops.decode_step.triton.settings import Cut, Split

MODELS = ("2.7B", "small", "llama-2-7b")
Best = dict[Kernel, list[Cut]]
"""The cuts of each kernel, the fastest first."""
Splits = dict[str, list[Split]]
"""Those of each model's attention, the fastest first."""


def main(options: argparse.Namespace) -> None:
    """Carries out the phases, model by model. The budget limits whole steps and the peer's."""
    report, until = Report(options.out), monotonic() + options.budget_s
    report.held |= {"torch": torch.__version__, "triton": triton.__version__}
    if "compile" in options.phases:
        compiled(report, options)
    report.held |= {
        "device": torch.cuda.get_device_name(),
        "copy_bytes_per_s": copy_bytes_per_s(),
    }
    report.add(phase="copy", bytes_per_s=report.held["copy_bytes_per_s"])
    best, splits = ({}, {}) if options.chosen is None else swept(options.chosen)
    for name in dict.fromkeys(name for name, _ in options.cases):
        best, splits = alone(report, options, name, best, splits)
        for of, weights in options.cases:
            if of == name:
                whole(report, options, (name, weights), best, splits.get(name, []), until=until)
    if "peer" in options.phases:
        for name, weights in options.cases:
            if monotonic() < until:
                with told(report, f"peer {name} {weights}"):
                    peer(report, name, weights)


def compiled(report: Report, options: argparse.Namespace) -> None:
    """Compiles what the phases that are asked for launch."""
    of_sweep = jobs_of(options.cases) if "sweep" in options.phases else []
    of_rules = jobs_by_rule(options.cases) if {"steps", "caches"} & {*options.phases} else []
    jobs = list(dict.fromkeys((*of_sweep, *of_rules)))
    failed = compile_ahead(jobs, options.workers)
    report.add(phase="compile", n=len(jobs), failed=failed[:20], n_failed=len(failed))


def alone(
    report: Report, options: argparse.Namespace, name: str, best: Best, splits: Splits
) -> tuple[Best, Splits]:
    """Times the kernels of a model alone: the phases `sweep` and `ablate`.

    Returns:
        What was given, with the cuts that a sweep has timed.
    """
    if "sweep" in options.phases:
        with told(report, f"sweep {name} attention"):
            splits = {**splits, name: sweep_attention(report, name)}
        with told(report, f"sweep {name}"):
            formats = {FORMATS.index(weights) for of, weights in options.cases if of == name}
            best = {**best, **sweep(report, name, formats)}
    if "ablate" in options.phases:
        with told(report, "ablate"):
            ablate(report, name, best, options.ablation)
    return best, splits


def whole(
    report: Report,
    options: argparse.Namespace,
    case: tuple[str, str],
    best: Best,
    splits: list[Split],
    *,
    until: float,
) -> None:
    """Times whole steps of a model with such weights: the phases `steps`, `refine` and `caches`. None begins
    after `until`, on the clock `monotonic`."""
    name, weights = case
    if "steps" in options.phases and monotonic() < until:
        with told(report, f"steps {name} {weights}"):
            steps(report, name, weights, best, splits)
    if "refine" in options.phases and monotonic() < until:
        with told(report, f"refine {name} {weights}"):
            refine(report, name, weights, fastest(name, weights, best, splits))
    if "caches" in options.phases and monotonic() < until:
        with told(report, f"caches {name} {weights}"):
            caches(report, name, weights, options.positions, options.batch)


def parsed() -> argparse.Namespace:
    """The options, with phases and cases as lists."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--phases", type=names, default="compile,sweep,steps")
    every = ",".join(f"{name}/{weights}" for name in MODELS for weights in FORMATS)
    parser.add_argument("--cases", type=pairs, default=every, help="MODEL/WEIGHTS,…")
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


def names(text: str) -> list[str]:
    """The parts of `A,B,…`."""
    return text.split(",")


def pairs(text: str) -> list[tuple[str, ...]]:
    """The parts of `A/B,C/D,…`, as pairs."""
    return [tuple(each.split("/")) for each in names(text)]


if __name__ == "__main__":
    sys.exit(main(parsed()))
