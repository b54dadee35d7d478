"""How long `peakward --help` and `peakward plan` take: `python benchmarks/cli_startup.py --out FILE`.

Ten runs of the installed command, each a new process, after one that is thrown away because it may
read files from disk. Beside it, the same for an interpreter that does nothing, which is the part
that is not ours, and whether torch was imported.
"""

import argparse
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter

import msgspec

from peakward.lab.measure import probe
from peakward.records.measurement import Environment

N_RUNS = 10
TARGET_S = 0.3
PLAN_TARGET_S = 0.5
PLANS = {
    "small on one device": "plan --device h100-sxm",
    "llama-3-8b on four": "plan --model llama-3-8b --batch-size 8 --seq-len 4096 --device "
    "h100-sxm,a100-80,rtx-4090",
}
"""With all that a plan holds: twelve levers, their composition, the largest batch."""


class Startup(msgspec.Struct, frozen=True, kw_only=True):
    """The result file."""

    environment: Environment
    started_at: str
    help_s: tuple[float, ...]
    median_help_s: float
    bare_interpreter_s: tuple[float, ...]
    median_bare_interpreter_s: float
    target_s: float = TARGET_S
    imports_torch: bool
    plans_s: dict[str, tuple[float, ...]]
    """By what is planned."""
    plan_target_s: float = PLAN_TARGET_S


def measure() -> Startup:
    """Time both, alternately."""
    peakward = shutil.which("peakward")
    if peakward is None:
        raise SystemExit("expected `peakward` on the PATH: install it first")
    plans = ([peakward, *words.split()] for words in PLANS.values())
    commands = ([peakward, "--help"], [sys.executable, "-c", "pass"], *plans)
    for command in commands:
        timed(command)
    rounds = [tuple(timed(command) for command in commands) for _ in range(N_RUNS)]
    helps, bares, *planned = zip(*rounds, strict=True)
    return Startup(
        environment=probe.environment("cpu"),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        help_s=helps,
        median_help_s=median(helps),
        bare_interpreter_s=bares,
        median_bare_interpreter_s=median(bares),
        imports_torch=imports_torch(),
        plans_s=dict(zip(PLANS, planned, strict=True)),
    )


def timed(command: list[str]) -> float:
    """Seconds from start to exit."""
    start_s = perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - start_s


def imports_torch() -> bool:
    """Whether a process that has printed the help holds torch."""
    program = (
        "import sys; from peakward.cli.main import main; main(['--help']); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, stdout=subprocess.DEVNULL)
    return done.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    out: Path = parser.parse_args().out
    result = measure()
    with out.open("xb") as file:  # results are never overwritten
        file.write(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    print(
        f"peakward --help: median of {N_RUNS} {result.median_help_s:.3f} s (target {TARGET_S} s), "
        f"a bare interpreter {result.median_bare_interpreter_s:.3f} s, "
        f"torch {'imported' if result.imports_torch else 'not imported'}"
    )
    for what, seconds in result.plans_s.items():
        print(f"a plan of {what}: {median(seconds):.3f} s (target {PLAN_TARGET_S} s)")


if __name__ == "__main__":
    main()
