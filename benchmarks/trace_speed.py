"""Peakward against HolisticTraceAnalysis on one trace.

`python benchmarks/trace_speed.py TRACE --peer PYTHON`, where PYTHON is an interpreter that has the
peer (`pip install traceinsight` in an environment of its own). Each side reads the file and asks
for the temporal breakdown, the kernel breakdown and the overlap of communication with compute, in a
fresh process each time, the sides in turns. Memory is the peak of resident memory of the process
and of each of its children, added up, though they need not coincide. Big traces come from
`benchmarks/trace_replicate.py`.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import NamedTuple

import msgspec

from peakward.lab.measure import probe
from peakward.records.lever import Pair
from peakward.records.measurement import Environment, Interval
from peakward.stats.pairs import ratio_interval

OURS = """
import sys
import peakward as pw
trace = pw.trace(sys.argv[1])
trace.breakdown(), trace.kernels(), trace.overlap()
"""
PEERS = """
import sys
from hta.trace_analysis import TraceAnalysis
trace = TraceAnalysis(trace_files={0: sys.argv[1]}, include_last_profiler_step=True)
trace.get_temporal_breakdown(visualize=False)
trace.get_gpu_kernel_breakdown(visualize=False)
trace.get_comm_comp_overlap(visualize=False)
"""


class Spent(NamedTuple):
    """By one process and its children."""

    wall_s: float
    peak_bytes: int


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """The result file."""

    environment: Environment
    started_at: str
    peer: str
    trace: str
    trace_bytes: int
    n_rounds: int
    ours_s: tuple[float, ...]
    peers_s: tuple[float, ...]
    times_faster: Interval
    ours_peak_bytes: int
    peers_peak_bytes: int
    load_average: tuple[float, float, float]


def spend(python: str, program: str, trace: Path) -> Spent:
    """Run the program on the trace."""
    started, peaks = perf_counter(), dict[int, int]()
    process = subprocess.Popen(
        [python, "-c", program, str(trace)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None:
        peaks |= {pid: peak for pid in _family(process.pid) if (peak := _peak(pid))}
        sleep(0.02)
    wall_s = perf_counter() - started
    if process.returncode:
        raise SystemExit(f"expected {python} to read {trace}, got exit code {process.returncode}")
    return Spent(wall_s, sum(peaks.values()))


def _family(pid: int) -> list[int]:
    """The process and all below it."""
    try:
        said = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return [pid]
    return [pid, *(each for child in said.split() for each in _family(int(child)))]


def _peak(pid: int) -> int:
    """The kernel's own high-water mark of a process's resident memory: reading it costs nothing,
    where summing up a large process's pages slowed it down."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def compare(trace: Path, peer: str, n_rounds: int) -> Speed:
    """The sides in turns, after one run of ours that brings the file into the page cache."""
    spend(sys.executable, OURS, trace)
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    rounds = [
        (spend(sys.executable, OURS, trace), spend(peer, PEERS, trace)) for _ in range(n_rounds)
    ]
    ours, peers = zip(*rounds, strict=True)
    ratio = ratio_interval(
        [Pair(process=i, base_s=a.wall_s, candidate_s=b.wall_s) for i, (a, b) in enumerate(rounds)]
    )
    return Speed(
        environment=probe.environment("cpu"),
        started_at=started_at,
        peer=_version(peer),
        trace=trace.name,
        trace_bytes=trace.stat().st_size,
        n_rounds=n_rounds,
        ours_s=tuple(each.wall_s for each in ours),
        peers_s=tuple(each.wall_s for each in peers),
        times_faster=ratio,
        ours_peak_bytes=max(each.peak_bytes for each in ours),
        peers_peak_bytes=max(each.peak_bytes for each in peers),
        load_average=os.getloadavg(),
    )


def _version(python: str) -> str:
    asked = "from importlib.metadata import version; print(version('traceinsight'))"
    said = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True)
    return f"traceinsight {said.stdout.strip()}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, print a line, write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--peer", required=True, help="a Python that has traceinsight")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    found = compare(options.trace, options.peer, options.rounds)
    ratio = found.times_faster
    less = found.peers_peak_bytes / found.ours_peak_bytes
    print(
        f"{found.trace}, {found.trace_bytes / 1e6:,.0f} MB: ours {median(found.ours_s):.2f} s in "
        f"{found.ours_peak_bytes / 1e6:,.0f} MB, {found.peer} {median(found.peers_s):.1f} s in "
        f"{found.peers_peak_bytes / 1e6:,.0f} MB: {ratio.estimate:.1f}× faster "
        f"({ratio.low:.1f} to {ratio.high:.1f}), {less:.1f}× less memory"
    )
    if options.out is not None:
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")


if __name__ == "__main__":
    main()
