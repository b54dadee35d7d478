"""What a watched run costs beside the same run without a watch, in turns on one GPU.

python benchmarks/debug_cost.py --model small --batch-size 8 --seq-len 1024 --out debug_cost.json
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import peakward as pw
from peakward.api.machine import this_machine
from peakward.lab.levers.prepare import prepare
from peakward.records.debugging import Watching

N_TURNS = 4


def main() -> None:
    """Time both arms A B B A …, each of as many steps as lie between two snapshots."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="small")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--n-steps", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    case = pw.case(
        given.model,
        batch_size=given.batch_size,
        seq_len=given.seq_len,
        levers=("bf16-mixed", "sdpa", "compile", "fused-optimizer"),
        device="cuda",
    )
    with prepare(case) as step:

        def plain() -> float:
            torch.cuda.synchronize()
            began = time.perf_counter()
            for batches, _ in zip(step.batches(), range(given.n_steps), strict=False):
                step.on(batches)
            torch.cuda.synchronize()
            return time.perf_counter() - began

        def watched() -> float:
            found = pw.debug(
                step.on,
                model=step.model,
                optimizer=step.optimizer,
                batches=step.batches(),
                n_steps=given.n_steps,
                snapshot_every=given.n_steps,
            ).watching
            snapshots.append(found)
            return found.run_s

        snapshots: list[Watching] = []
        plain()
        watched()
        times: dict[str, list[float]] = {"plain": [], "watched": []}
        for n in range(N_TURNS):
            arms = [("plain", plain), ("watched", watched)]
            for name, run in arms if n % 2 == 0 else reversed(arms):
                times[name].append(run() / given.n_steps)
    ratios = [b / a for a, b in zip(times["plain"], times["watched"], strict=True)]
    here = this_machine("cuda").environment
    record = {
        "device": here.device_name,
        "torch": here.torch,
        "case": f"{given.model} {given.batch_size} x {given.seq_len} bf16-mixed sdpa compile",
        "n_steps_between_snapshots": given.n_steps,
        "plain_step_s": times["plain"],
        "watched_step_s": times["watched"],
        "ratio_median": statistics.median(ratios),
        "ratios": ratios,
        "snapshot_bytes": snapshots[-1].snapshot_bytes,
        "snapshot_host_s": [each.snapshots_s for each in snapshots[1:]],
    }
    given.out.write_text(json.dumps(record, indent=1))
    print(f"watched over plain: {record['ratio_median']:.4f}")


if __name__ == "__main__":
    main()
