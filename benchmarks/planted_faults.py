"""How well the rules of `peakward.diagnose` find faults that are known: programs with one, and without.

    python benchmarks/planted_faults.py --device cpu --out results/DATE-cpu-planted-faults.json
    python benchmarks/planted_faults.py --device cuda --out results/DATE-NAME-planted-faults.json

Needs transformers, no network. The file is written after each program: the same command goes on where
it was ended, and runs again what had failed; where a program has changed since, name another file.
"""

import argparse
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from faults.catalogue import PROGRAMS
from faults.judge import judged
from faults.lab import Lab
from faults.page import document
from faults.records import Clean, Fault, Needs, Planted, Ran, Skipped
from peakward.lab.measure import probe
from peakward.lab.measure.isolated import Workers
from peakward.lab.measure.sweep import Sweep
from peakward.records.case import DeviceType
from peakward.records.measurement import Environment
from peakward.report import markdown
from peakward.store.database import Store

Run = tuple[Clean | Fault, float]
LIMIT_S = 150
"""Of one program: many times what any should take."""


class Options(NamedTuple):
    """What was asked."""

    out: Path
    device: DeviceType
    only: tuple[str, ...]
    budget_s: float
    keep: Path | None


def main() -> None:
    """Run, judge, write both files, print the report's head."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file, begun or not")
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument(
        "--only", type=lambda text: tuple(text.split(",")), default=(), help="rules, or `clean`"
    )
    parser.add_argument("--budget-s", type=float, default=3000.0, help="begin none after this")
    parser.add_argument("--keep", type=Path, help="a folder for the traces")
    options = Options(**vars(parser.parse_args()))
    environment = probe.environment(options.device)
    ran: dict[str, Ran] = {}
    if options.out.exists():
        known = msgspec.json.decode(options.out.read_bytes(), type=Planted)
        if known.environment.key != environment.key:
            parser.error(f"expected results of this machine in {options.out}, got another's")
        current = {_ran(*each).label for each in _runs(PROGRAMS, ())}
        kept = (each for each in known.ran if each.failed is None and each.label in current)
        ran = {each.label: each for each in kept}
    with (
        tempfile.TemporaryDirectory(prefix="peakward-") as scratch,
        Store.open(Path(scratch) / "peakward.db") as store,
        Workers() as workers,
    ):
        lab = Lab(options.device, Sweep(store, workers, environment), store, options.keep)
        print(_carry_out(options, lab, environment, ran), file=sys.stderr)


def _carry_out(options: Options, lab: Lab, environment: Environment, ran: dict[str, Ran]) -> str:
    """Run what has not run, writing after each; returns the headline."""
    deadline_s = time.monotonic() + options.budget_s
    skipped: list[Skipped] = []
    for program, strength in _runs(PROGRAMS, options.only):
        empty = _ran(program, strength)
        if empty.label in ran:
            continue
        why = _obstacle(program.needs, options.device)
        if why is None and time.monotonic() > deadline_s:
            why = "the time budget was spent"
        if why is not None:
            skipped.append(Skipped(program=program.name, planted=empty.planted, reason=why))
            continue
        start = time.monotonic()
        ran[empty.label] = found = _attempt(empty, program, lab)
        told = found.failed or f"{time.monotonic() - start:.0f} s"
        print(f"{found.label}: {told}", file=sys.stderr, flush=True)
        _write(options, environment, ran.values(), skipped)
    return _write(options, environment, ran.values(), skipped)


def _runs(programs: Iterable[Clean | Fault], only: tuple[str, ...]) -> Iterator[Run]:
    for program in programs:
        if only and not _wanted(program, only):
            continue
        strengths = (0.0, *program.strengths) if isinstance(program, Fault) else (0.0,)
        yield from ((program, each) for each in strengths)


def _wanted(program: Clean | Fault, only: tuple[str, ...]) -> bool:
    return (program.code if isinstance(program, Fault) else "clean") in only


def _obstacle(needs: Needs, device: DeviceType) -> str | None:
    """Why a program cannot run here."""
    if needs == "two GPUs" and torch.cuda.device_count() < 2:
        return "needs two GPUs"
    if needs == "cuda" and device == "cpu":
        return "needs a GPU"
    return "is of a CPU alone" if needs == "cpu" and device == "cuda" else None


def _ran(program: Clean | Fault, strength: float) -> Ran:
    """Not run yet."""
    if isinstance(program, Clean):
        return Ran(program=program.name, planted=None)
    return Ran(program=program.name, planted=program.code, strength=strength, unit=program.unit)


def _attempt(empty: Ran, program: Clean | Fault, lab: Lab) -> Ran:
    try:
        with _at_most(LIMIT_S):
            is_clean = isinstance(program, Clean)
            seen = program.observe(lab) if is_clean else program.observe(lab, empty.strength)
    except Exception as error:  # noqa: BLE001  one program must not end the rest: it is told
        lines = str(error).strip().splitlines() or [""]
        failed = f"{type(error).__name__}: {lines[0]}"
    else:
        return msgspec.structs.replace(empty, seen=seen)
    lab.release()  # Here, where nothing holds the frames of what failed.
    return msgspec.structs.replace(empty, failed=failed)


@contextmanager
def _at_most(limit_s: int) -> Iterator[None]:
    """Raises TimeoutError in what is inside, at its next line of Python."""

    def late(*_: object) -> None:
        raise TimeoutError(f"took more than {limit_s} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(limit_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _write(
    options: Options, environment: Environment, ran: Iterable[Ran], skipped: Iterable[Skipped]
) -> str:
    """Both files; returns the headline."""
    order = {_ran(*each).label: at for at, each in enumerate(_runs(PROGRAMS, ()))}
    command = ["python", "benchmarks/planted_faults.py", "--device", options.device]
    found = judged(
        Planted(
            device=options.device,
            environment=environment,
            command=shlex.join([*command, "--out", f"results/{options.out.name}"]),
            ran=tuple(sorted(ran, key=lambda each: order[each.label])),
            skipped=tuple(dict.fromkeys(skipped)),
        )
    )
    scratch = options.out.with_suffix(".part")
    scratch.write_bytes(msgspec.json.encode(found) + b"\n")
    scratch.replace(options.out)
    page = document(found)
    options.out.with_suffix(".md").write_text(markdown.render(page), encoding="utf-8")
    return page.headline


if __name__ == "__main__":
    main()
