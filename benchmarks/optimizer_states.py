"""Does a decoder train as well in fp8, or with its moments in bf16 or 8 bits, and how long
does AdamW's step take?

A small decoder is trained on real text by each arm, a precision and a type of AdamW's moments, and each seed.
All arms begin from a seed's weights and see its sequences in its order, so that their held-out losses are
paired by seed. "No worse" is said where the 95% interval of the mean difference to the first arm ends below
the standard deviation of that arm's own loss over the seeds: less than what another seed changes.

On a GPU the kernels train `small` in compiled blocks, then each optimiser's step over the parameters of
`2.7B` is timed in turns, beside a copy. On a CPU the references train a tiny decoder; a control, 8 bits
rounded to nearest, shows what the comparison can see.

python benchmarks/optimizer_states.py --device cuda --text shakespeare --out optimizer-states.json

The file is written after every run. A second call with the same file goes on where the first was ended, and
adds the arms and seeds that are new.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import torch

from loss_curves import arms, verdicts
from loss_curves.moments import NEAREST, STATES, TORCHAO, Make, torchao_8bit
from loss_curves.training import Trainer
from peakward.api.machine import this_machine
from peakward.kernels.ops.adamw.api import TritonAdamW
from peakward.kernels.ops.attention.api import implementation
from peakward.lab.models.decoder import Decoder
from peakward.models.presets import model as preset
from peakward.records.errors import PeakwardError
from peakward.stats.summary import median_interval

TIMED_STEPS, TURNS = 3, 12

BYTES = {"torch fused": 28.0, "fp32": 28.0, "bf16": 20.0, "8bit": 16.0 + 4 / 256}
"""Read and written for a parameter, each stream once: parameter and moments twice, the gradient."""


def times(name: str) -> dict[str, Any]:
    """Every optimiser's step over the parameters of a preset in fp32, in turns with a copy."""
    with torch.device("meta"):
        planned = Decoder(preset(name), implementation("sdpa"))
    parameters = []
    for each in planned.parameters():
        made = torch.nn.Parameter(torch.randn(each.shape, device="cuda") * 0.02)
        made.grad = torch.randn(each.shape, device="cuda") * 0.01
        parameters.append(made)
    n = sum(each.numel() for each in parameters)
    makers: dict[str, Make] = {
        "torch fused": lambda params, lr: torch.optim.AdamW(params, lr=lr, fused=True),
        **{key: partial(TritonAdamW, states=value) for key, value in STATES.items()},
    }
    if find_spec("torchao"):
        makers[TORCHAO] = torchao_8bit
    calls: dict[str, Callable[[], object]] = {}
    memory: dict[str, float] = {}
    for key, make in makers.items():
        before = torch.cuda.memory_allocated()
        optimizer = make(parameters, lr=1e-6)
        optimizer.step()
        memory[key] = (torch.cuda.memory_allocated() - before) / n
        calls[key] = optimizer.step
    source = torch.empty(1 << 30, device="cuda")
    target = torch.empty_like(source)
    calls["copy"] = lambda: target.copy_(source)
    taken: dict[str, list[float]] = {key: [] for key in calls}
    for _ in range(2):
        for call in calls.values():
            call()
    for order in turns(list(calls)):
        for key in order:
            taken[key].append(timed(calls[key]))
    rate = 8 * source.numel() / statistics.median(taken["copy"])
    return {
        "model": name,
        "n_parameters": n,
        "copy_bytes_per_s": rate,
        "optimizers": {
            key: told(taken[key], n * BYTES[key] if key in BYTES else None, rate)
            | {"state_bytes_a_parameter": memory[key]}
            for key in makers
        },
    }


def turns(keys: list[str]) -> Iterator[list[str]]:
    """Orders in which each is as often early as late."""
    for at in range(TURNS):
        order = keys[at % len(keys) :] + keys[: at % len(keys)]
        yield order if at % 2 == 0 else order[::-1]


def timed(call: Callable[[], object]) -> float:
    """Seconds of the device for one call, of some in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(TIMED_STEPS):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / TIMED_STEPS


def told(seconds: list[float], n_bytes: float | None, rate: float) -> dict[str, Any]:
    """The median with its interval, and the share of the copy's rate that it moves its bytes at."""
    interval = median_interval(seconds)
    return {
        "median_s": interval.estimate,
        "interval_s": [interval.low, interval.high],
        "turns_s": seconds,
        "bytes": n_bytes,
        "share_of_copy": None if n_bytes is None else n_bytes / interval.estimate / rate,
    }


def losses(given: argparse.Namespace, record: dict[str, Any]) -> None:
    """Train every arm with every seed, from what the record holds on; it is written after each run.

    Raises:
        PeakwardError: the record's curves are of another setting or machine.
    """
    trainer = Trainer(given)
    found = record.setdefault("losses", {"setting": trainer.setting(), "runs": {}, "judged": {}})
    if found["setting"] != trainer.setting():
        raise PeakwardError(
            f"expected the setting {found['setting']} of {given.out}, got {trainer.setting()}: take another "
            "--out"
        )
    runs = found["runs"]
    for arm, run in trainer.runs(runs):
        runs.setdefault(arm.name, []).append(run)
        found["judged"] = verdicts.judged(runs)
        write(record, given.out)
        last = run["curve"][-1]["held_out"]
        print(f"{arm.name}, seed {run['seed']}: {last} ({run['wall_s']:.1f} s)", flush=True)
    print("\n".join(verdicts.sentences(found["judged"])))


def write(record: dict[str, Any], path: Path) -> None:
    """The whole file or nothing of it."""
    half = path.with_name(path.name + ".half")
    half.write_text(json.dumps(record, indent=1))
    os.replace(half, path)  # noqa: PTH105


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--text", default="shakespeare")
    parser.add_argument("--model", default="small", help="the preset that a GPU trains")
    parser.add_argument("--timed", default="2.7B", help="the preset whose optimiser is timed")
    parser.add_argument("--only", choices=("losses", "times"))
    parser.add_argument(
        "--arms",
        type=arms.parsed,
        nargs="+",
        help=f"precision:moments, the first is the one that others are held to: {arms.PRECISIONS} and "
        f"{arms.MOMENTS}",
    )
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    if given.seeds is not None and given.seeds < verdicts.LEAST_SEEDS:
        parser.error(f"expected --seeds from 2 on, got {given.seeds}: one seed has no spread")
    on_gpu = given.device == "cuda"
    given.arms = given.arms or arms.DEFAULT[given.device]
    kept = {each.moments for each in given.arms}
    if on_gpu and NEAREST in kept:
        parser.error(f"expected moments that a GPU has, got {NEAREST}: it is a control on a CPU")
    if TORCHAO in kept and not find_spec("torchao"):
        parser.error(f"expected torchao for {TORCHAO}, got none: pip install torchao")
    given.seeds = given.seeds or (5 if on_gpu else 6)
    given.length = given.length or (512 if on_gpu else 128)
    given.lr = given.lr or (6e-4 if on_gpu else 2e-3)
    return given


def run(given: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, beside what the file holds.

    Raises:
        PeakwardError: the file is of another setting or machine.
    """
    here = msgspec.to_builtins(this_machine(given.device).environment)
    record: dict[str, Any] = {"environment": here}
    if given.out.exists():
        record = json.loads(given.out.read_text())
    there, now = ((each["device_name"], each["torch"]) for each in (record["environment"], here))
    if there != now:
        raise PeakwardError(f"expected {there} of {given.out}, got {now}: take another --out")
    if given.device == "cuda" and given.only != "losses" and "times" not in record:
        record["times"] = times(given.timed)
        write(record, given.out)
        torch.cuda.empty_cache()
        for key, each in record["times"]["optimizers"].items():
            share = each["share_of_copy"]
            print(
                f"{key}: {each['median_s'] * 1e3:.2f} ms, {each['state_bytes_a_parameter']:.2f} bytes of "
                f"state a parameter, {'' if share is None else f'{share:.0%} of a copy'}"
            )
    if given.only != "times":
        losses(given, record)
    return record


def main() -> None:
    """Write one JSON, and print the verdicts and the times."""
    try:
        run(parse(None))
    except PeakwardError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
