"""Attention on Hopper at every setting: what is right, then how fast, in one job on one GPU.

    python benchmarks/hopper_settings.py --out results/hopper-settings.json [--budget-s 115]

Every setting is checked against fp64 in a process of its own, all at once, each ended after
--check-s; what is right then is timed in turns with cuDNN, in one more process. A setting that hangs
costs its own process, and what has been timed by then is kept.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from time import monotonic

Finding = dict[str, str | int]
AT_ONCE = 16
"""Processes that check: each holds a context and 3 GiB of scores in fp64 at most."""


def main(arguments: list[str]) -> None:
    options = parsed(arguments)
    if options.check:
        check(*options.check)
    elif options.time:
        time(options)
    else:
        carry_out(options)


def carry_out(options: argparse.Namespace) -> None:
    deadline = monotonic() + options.budget_s
    found = checked(options.check_s)
    options.out.with_suffix(".checks.json").write_text(json.dumps(found, indent=1) + "\n")
    for each in found:
        print(
            f"{each['pass']} {each['setting']} d {each['head_dim']}: {each['wrong'] or 'right'}",
            flush=True,
        )
    left_s = deadline - monotonic()
    command = [sys.executable, __file__, "--time", "--out", str(options.out)]
    command += ["--budget-s", str(left_s - 3), "--rounds", str(options.rounds)]
    try:
        subprocess.run(command, timeout=max(1.0, left_s + 5), check=False)
    except subprocess.TimeoutExpired:
        print(f"timing was ended; what there is is in {options.out}", flush=True)


def checked(check_s: float) -> list[Finding]:
    """What every setting's process found, one entry for each head dimension."""
    from kernels.flash_attention_hopper_sweep import names

    started = monotonic()
    running = [
        (
            pass_,
            name,
            subprocess.Popen(
                [sys.executable, __file__, "--out", "-", "--check", pass_, name],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ),
        )
        for pass_, name in names()
    ]
    assert len(running) <= AT_ONCE
    found: list[Finding] = []
    for pass_, name, process in running:
        try:
            out, errors = process.communicate(timeout=max(1.0, started + check_s - monotonic()))
            said = f"ended with {process.returncode}: {errors[-300:]}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            out = ended(process)
            said = f"nothing more within {check_s:g} s"
        lines = [json.loads(each) for each in out.splitlines() if each.startswith("{")]
        found += [{"pass": pass_, "setting": name, **each} for each in lines]
        if said:
            done = {each["head_dim"] for each in lines}
            rest = [each for each in (64, 80, 96, 128) if each not in done]
            found += [
                {"pass": pass_, "setting": name, "head_dim": each, "wrong": said} for each in rest
            ]
    return found


def ended(process: subprocess.Popen[str]) -> str:
    """What it has printed. Where a kernel hangs, its process goes once the driver has taken it down."""
    process.kill()
    try:
        return process.communicate(timeout=10)[0]
    except subprocess.TimeoutExpired:
        return ""


def check(pass_: str, name: str) -> None:
    """Prints a finding for each head dimension, as soon as it is there."""
    import torch

    from kernels.flash_attention_hopper_sweep import check_each

    with torch.device("cuda"):
        for head_dim, wrong in check_each(pass_, name):
            print(json.dumps({"head_dim": head_dim, "wrong": wrong}), flush=True)


def time(options: argparse.Namespace) -> None:
    import pynvml

    from kernel_speed import copy_rate, line, reported, write
    from kernels.duel import carry_out as contend
    from kernels.flash_attention_hopper_sweep import contests
    from kernels.results import Outcome

    deadline = monotonic() + options.budget_s
    found = json.loads(options.out.with_suffix(".checks.json").read_text())
    wrong = {(each["pass"], each["setting"], each["head_dim"]) for each in found if each["wrong"]}
    pynvml.nvmlInit()
    copy_bytes_per_s = copy_rate()
    outcomes: list[Outcome] = []
    left: list[str] = []
    for contest in contests(wrong):
        name = " ".join(map(str, contest.shape.values()))
        if monotonic() > deadline:
            left.append(name)
            continue
        outcomes.append(contend(contest, n_rounds=options.rounds, n_calls=options.calls))
        print(f"{name}: {line(outcomes[-1])}", flush=True)
        write(reported(options, outcomes, left, (), copy_bytes_per_s), options.out)
    write(reported(options, outcomes, left, (), copy_bytes_per_s), options.out)
    print(f"left: {left}", flush=True)


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget-s", type=float, default=115.0)
    parser.add_argument("--check-s", type=float, default=70.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--check", nargs=2, metavar=("PASS", "SETTING"), help=argparse.SUPPRESS)
    parser.add_argument("--time", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
