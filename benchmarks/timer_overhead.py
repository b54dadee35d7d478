"""What the timer adds to a bare loop with events: `python benchmarks/timer_overhead.py --out FILE`.

A round runs each step, after as many untimed ones, in a bare loop (an event or a reading of
perf_counter a step, nothing else; the garbage collector paused in both) and under Peakward's timer
with telemetry, the order turning round by round. The overhead is the ratio of the two, by the
t-interval on its logarithm: of the mean step (the whole loop's time, everything included), of the
median step (what is reported) and, on a CPU, of the process's own CPU time, which other work on the
machine leaves alone.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import fmean, median
from time import perf_counter, process_time
from typing import NamedTuple

import msgspec
import torch

from peakward.lab.measure import nvml, probe
from peakward.lab.measure.assemble import Stopwatch
from peakward.lab.measure.clock import Clock, clock_for
from peakward.lab.measure.crowd import Crowd
from peakward.lab.measure.telemetry import Sampler
from peakward.lab.measure.timer import collector_paused, run_steps, timing_done
from peakward.records.case import DeviceType
from peakward.records.lever import Pair
from peakward.records.measurement import Environment, Interval, Protocol
from peakward.stats.pairs import ratio_interval

SEARCHING = Protocol(max_timed_s=1e9, max_steps=1 << 30, relative_half_width=1e-9)
"""Never satisfied, so that the timer asks itself after every chunk whether to stop. Of 0 it knows
that nothing satisfies it, and would not look."""


class Step(NamedTuple):
    """A step of a known kind."""

    name: str
    run: Callable[[], object]


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of step."""

    step: str
    n_steps: int
    n_rounds: int
    bare_step_s: float
    """Mean over all bare rounds."""
    ratio_of_means: Interval
    ratio_of_medians: Interval
    ratio_of_cpu_times: Interval | None
    """None on a GPU, where the process spins while it waits."""


class Round(NamedTuple):
    """One loop's step times, and the CPU time of the process over all of it."""

    times_s: tuple[float, ...]
    cpu_s: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All kinds, and where."""

    environment: Environment
    started_at: str
    wall_s: float
    load_average: tuple[float, float, float]
    overheads: tuple[Overhead, ...]


def cuda_steps() -> Iterator[Step]:
    """100 µs three ways: one kernel, ten kernels that the GPU waits for, and ten of 10 µs.

    Launches vary by 2% from round to round (H200 machine, 2026-11-21), which hides a cost of 1%; a
    host that computes for 50 µs is as little ahead of the GPU and does not vary so.
    """
    yield Step("50 µs of the host alone", _spin)
    yield Step("one kernel of 100 µs", _sleeping(100e-6))
    tiny = torch.zeros(256, device="cuda")
    yield Step("ten launch-bound kernels", lambda: [tiny.add_(1.0) for _ in range(10)])
    tenth = _sleeping(10e-6)
    yield Step("ten kernels of 10 µs", lambda: [tenth() for _ in range(10)])
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    yield Step("a bf16 product of 4096³", lambda: torch.mm(a, a))


def _spin() -> None:
    end_s = perf_counter() + 50e-6
    while perf_counter() < end_s:
        pass


def _sleeping(seconds: float) -> Callable[[], object]:
    """A kernel that spins for about so long at the clock found now."""
    cycles = 1_000_000
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
    cycles = round(cycles * seconds / (start.elapsed_time(end) * 1e-3))
    return lambda: torch.cuda._sleep(cycles)


def cpu_steps() -> Iterator[Step]:
    """About 100 µs and about 1 ms on one core, without waiting for other threads."""
    torch.set_num_threads(1)
    small, large = torch.randn(128, 128), torch.randn(384, 384)
    yield Step("a fp32 product of 128³", lambda: torch.mm(small, small))
    yield Step("a fp32 product of 384³", lambda: torch.mm(large, large))


def bare(step: Callable[[], object], clock: Clock, n_steps: int) -> Round:
    """The shortest loop that times its steps."""
    clock.reserve(n_steps + 1)
    mark = clock.mark
    with collector_paused():
        before_s = process_time()
        mark(0)
        for i in range(1, n_steps + 1):
            step()
            mark(i)
        clock.wait(n_steps)
        times = tuple(clock.between_s(i, i + 1) for i in range(n_steps))
        return Round(times, process_time() - before_s)


def timed(
    step: Callable[[], object], clock: Clock, n_steps: int, watch: AbstractContextManager[object]
) -> Round:
    """Under Peakward's timer, asking after each chunk whether to stop, with what watches it."""
    with collector_paused(), watch:
        before_s = process_time()
        times = run_steps(
            step,
            clock,
            max_steps=n_steps,
            done=lambda progress: timing_done(progress, SEARCHING),
        )
        return Round(times, process_time() - before_s)


def overhead(step: Step, device: DeviceType, *, round_s: float, n_rounds: int) -> Overhead:
    """`n_rounds` rounds of about `round_s` seconds for each of the two."""
    clock = clock_for(device)
    gpu = nvml.visible_gpu() if device == "cuda" else None
    bare(step.run, clock, 50)
    n_steps = max(20, round(round_s / fmean(bare(step.run, clock, 50).times_s)))
    rounds = []
    for i in range(n_rounds):
        done: dict[str, Round] = {}
        for name in ("bare", "timed") if i % 2 == 0 else ("timed", "bare"):
            watch = Sampler(gpu) if device == "cuda" else Crowd()
            bare(step.run, clock, n_steps)  # warm-up, during which the sensors' process gets ready
            if name == "bare":
                done[name] = bare(step.run, clock, n_steps)
            else:
                done[name] = timed(step.run, clock, n_steps, watch)
            del watch
        rounds.append(done)
    return Overhead(
        step=step.name,
        n_steps=n_steps,
        n_rounds=n_rounds,
        bare_step_s=fmean(fmean(each["bare"].times_s) for each in rounds),
        ratio_of_means=_ratio(rounds, lambda each: fmean(each.times_s)),
        ratio_of_medians=_ratio(rounds, lambda each: median(each.times_s)),
        ratio_of_cpu_times=_ratio(rounds, lambda each: each.cpu_s) if device == "cpu" else None,
    )


def _ratio(rounds: list[dict[str, Round]], statistic: Callable[[Round], float]) -> Interval:
    return ratio_interval(
        [
            Pair(process=0, base_s=statistic(each["bare"]), candidate_s=statistic(each["timed"]))
            for each in rounds
        ]
    )


def main() -> None:
    """Measure on the device that is there, print a table, write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default=probe.default_device())
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--round-s", type=float, default=1.0)
    parser.add_argument("--step", default="", help="only the kinds whose names contain this")
    parser.add_argument("--out", type=Path, help="where the JSON goes; printed alone without it")
    options = parser.parse_args()
    device: DeviceType = options.device
    watch, environment = Stopwatch(), probe.environment(device)
    found = []
    for step in cuda_steps() if device == "cuda" else cpu_steps():
        if options.step not in step.name:
            continue
        each = overhead(step, device, round_s=options.round_s, n_rounds=options.rounds)
        found.append(each)
        print(
            f"{each.step:26} {each.bare_step_s * 1e6:9.1f} µs  × {each.n_steps:<6} "
            f"mean {_percent(each.ratio_of_means)}  median {_percent(each.ratio_of_medians)}  "
            f"cpu {_percent(each.ratio_of_cpu_times)}",
            flush=True,
        )
    report = Report(
        environment=environment,
        started_at=watch.started_at,
        wall_s=watch.wall_s(),
        load_average=os.getloadavg(),
        overheads=tuple(found),
    )
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def _percent(ratio: Interval | None) -> str:
    if ratio is None:
        return "–"
    ends = ", ".join(f"{(each - 1) * 100:+.2f}%" for each in (ratio.low, ratio.high))
    return f"{(ratio.estimate - 1) * 100:+.2f}% ({ends})"


if __name__ == "__main__":
    main()
