"""Peakward's kernels against the best that torch has for the same, in one job on one GPU.

    python benchmarks/kernel_speed.py --out results/kernels.json [--only attention,softmax]

Every contest checks all results, then times all arms in turns, each call from a cold L2. The run is
bounded by --budget-s: what no time was left for is named. What is there is written after every
contest. A module of `benchmarks/kernels/` for each operator gives its contests; compiling takes most
of the time of many, and is cached, so that several processes with --build-only may do it first.
"""

import argparse
import importlib
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from time import monotonic

import msgspec
import pynvml
import torch
import triton

from kernels.contest import Contest
from kernels.duel import build, carry_out
from kernels.page import markdown
from kernels.results import Outcome, Report
from kernels.timing import in_turns

OPERATORS = (
    "softmax",
    "rms_norm",
    "layer_norm",
    "rope",
    "swiglu",
    "cross_entropy",
    "linear_cross_entropy",
    "decode_attention",
    "quantized_matmul",
    "flash_attention",
)
COPY_BYTES = 1 << 30


def main(arguments: list[str]) -> None:
    options = parsed(arguments)
    deadline = monotonic() + options.budget_s
    # Every shape is compiled anew, and counts against the limit of recompilations.
    torch._dynamo.config.recompile_limit = 1 << 10
    torch._dynamo.config.accumulated_recompile_limit = 1 << 12
    # A backward pass is timed again and again on what one forward pass kept.
    torch._functorch.config.donated_buffer = False
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    copy_bytes_per_s = None if options.build_only else copy_rate()
    clocks_hz: list[int] = []
    outcomes: list[Outcome] = []
    left: list[str] = []
    held = names_in(options.without)
    for contest in chosen(options.only, options.part, sweep=options.sweep):
        name = named(contest)
        if name in held:
            continue
        if monotonic() > deadline:
            left.append(name)
        elif copy_bytes_per_s is None:
            build(contest)
        else:
            outcomes.append(carry_out(contest, n_rounds=options.rounds, n_calls=options.calls))
            clocks_hz.append(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM) * 10**6)
            print(f"{name}: {line(outcomes[-1])}", file=sys.stderr, flush=True)
            write(reported(options, outcomes, left, clocks_hz, copy_bytes_per_s), options.out)
        torch.cuda.empty_cache()
    if copy_bytes_per_s is not None:
        write(reported(options, outcomes, left, clocks_hz, copy_bytes_per_s), options.out)


def chosen(operators: Sequence[str], part: tuple[int, int], *, sweep: bool) -> Iterator[Contest]:
    """Of all contests every n-th, from the first on, the second, …"""
    first, step = part
    for operator in operators:
        module = importlib.import_module(f"kernels.{operator}")
        yield from islice(module.sweep() if sweep else module.contests(), first - 1, None, step)


def named(contest: Contest | Outcome) -> str:
    return f"{contest.operator} {' '.join(map(str, contest.shape.values()))}"


def names_in(report: Path | None) -> set[str]:
    if report is None:
        return set()
    return {named(each) for each in msgspec.json.decode(report.read_bytes(), type=Report).outcomes}


def reported(
    options: argparse.Namespace,
    outcomes: Sequence[Outcome],
    left: Sequence[str],
    clocks_hz: Sequence[int],
    copy_bytes_per_s: float,
) -> Report:
    return Report(
        device=torch.cuda.get_device_name(),
        driver=pynvml.nvmlSystemGetDriverVersion(),
        torch=str(torch.__version__),
        triton=triton.__version__,
        cudnn=torch.backends.cudnn.version(),
        clock_hz=(min(clocks_hz), max(clocks_hz)) if clocks_hz else None,
        copy_bytes_per_s=copy_bytes_per_s,
        n_rounds=options.rounds,
        n_calls=options.calls,
        outcomes=tuple(outcomes),
        left=tuple(left),
    )


def write(report: Report, out: Path) -> None:
    out.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    out.with_suffix(".md").write_text(markdown(report))


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(OPERATORS))
    parser.add_argument(
        "--sweep", action="store_true", help="our own kernel at several settings instead"
    )
    parser.add_argument("--build-only", action="store_true", help="compile, and time nothing")
    parser.add_argument(
        "--part",
        type=lambda text: tuple(map(int, text.split("/"))),
        default=(1, 1),
        metavar="1/4",
        help="every fourth contest of an operator, from the first on",
    )
    parser.add_argument(
        "--without", type=Path, help="leave out the contests that this report holds"
    )
    parser.add_argument("--rounds", type=rounds, default=5)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--budget-s", type=float, default=600.0)
    return parser.parse_args(arguments)


def rounds(text: str) -> int:
    if int(text) < 2:
        raise argparse.ArgumentTypeError(f"expected at least 2, for an interval, got {text}")
    return int(text)


def copy_rate() -> float:
    source = torch.randint(0, 127, (COPY_BYTES,), dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    (times_s,) = in_turns({"copy": lambda: target.copy_(source)}, n_rounds=3, n_calls=10).values()
    return 2 * COPY_BYTES / min(times_s)


def line(outcome: Outcome) -> str:
    """An outcome for who waits."""
    arms = ", ".join(
        f"{each.name} {each.median_s * 1e6:.1f} µs"
        if each.median_s
        else f"{each.name}: {each.failed}"
        for each in outcome.arms
    )
    ratio = outcome.speed_over_best
    return arms + (f"; {ratio.estimate:.3f}× {outcome.best_peer}" if ratio else "")


if __name__ == "__main__":
    main(sys.argv[1:])
