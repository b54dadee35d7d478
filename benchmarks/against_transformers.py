"""Peakward's best composition against transformers with torch.compile and SDPA, on one device.

    python benchmarks/against_transformers.py --out results/against-transformers.json

For each size, workload and pass: the peer's settings are tried one by one; the losses of its best
and of ours are compared on equal weights, and both go in turns, both resident where memory
allows. Both have the same shape, tokens, parameter and optimiser-state types and distribution of
weights; the loss is the mean cross-entropy over all tokens, in fp32 from logits in the compute
type. Where ours is in fp8, with parameters in fp32, the peer is in bf16 altogether, its fastest; a
train step then goes a second time, against the same peer in torchao's float8 where torchao is installed. The
whole run is bounded by --budget-s: settings that no time was left for are named.
"""

import argparse
import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import msgspec

from against import float8, outcome
from against.duel import Duel, Effort
from against.outcome import Failed, Outcome, Report, part_name
from against.peer import Setting, float8_settings, settings
from peakward.lab.measure import probe
from peakward.lab.measure.assemble import Stopwatch
from peakward.models.presets import model
from peakward.records.case import Configuration, DeviceType, ModelCase, Pass, Workload
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape

PASSES: tuple[Pass, ...] = ("forward", "train_step")
WORKLOADS = (("small", 4, 512), ("xl", 4, 512), ("2.7B", 4, 512), ("2.7B", 8, 1024))
WHOLE_MODEL = ("small", "micro")
"""Sizes that the peer is also compiled in one piece for: 32 to 48 layers take minutes."""
MICRO = (("micro", 2, 32),)
"""For a CPU: a layer of everything, in a second."""
MICRO_SHAPE = ModelShape(
    name="micro",
    vocab_size=512,
    n_layers=2,
    d_model=64,
    d_ff=128,
    n_heads=4,
    n_kv_heads=4,
    head_dim=16,
    max_seq_len=64,
)
DEFAULT = {
    "cuda": Configuration(
        precision="bf16",
        attention="sdpa-cudnn",
        compile="default",
        cuda_graphs=True,
        optimizer="adamw-fused",
    ),
    "cpu": Configuration(attention="sdpa", optimizer="adamw-fused"),
}


def configurations(given: str | None, device: DeviceType) -> Callable[[str], Configuration]:
    """By part: the default, one for all, or one for each part named (JSON, or @file holding it)."""
    if given is None:
        return lambda _name: DEFAULT[device]
    text = Path(given[1:]).read_bytes() if given.startswith("@") else given.encode()
    try:
        parsed = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        if any(":" in key for key in parsed):
            each = {
                key: msgspec.json.decode(raw, type=Configuration) for key, raw in parsed.items()
            }
            return lambda name: each.get(name, DEFAULT[device])
        one = msgspec.json.decode(text, type=Configuration)
    except msgspec.DecodeError as error:
        raise PeakwardError(
            f"expected a Configuration, or one for each part, got {error}"
        ) from error
    return lambda _name: one


def chosen_cases(options: argparse.Namespace) -> list[ModelCase]:
    """The parts asked for, in the order of the table.

    Raises:
        PeakwardError: --only names none.
    """
    configuration_of = configurations(options.configuration, options.device)
    cases = []
    for size, batch_size, seq_len in (*MICRO, *WORKLOADS):
        for pass_ in PASSES:
            case = ModelCase(
                model=MICRO_SHAPE if size == "micro" else model(size),
                workload=Workload(batch_size=batch_size, seq_len=seq_len, pass_=pass_),
                device=options.device,
            )
            name = part_name(case)
            wanted = not options.only or any(
                set(only.split(":")) <= set(name.split(":")) for only in options.only.split(",")
            )
            if size in options.sizes.split(",") and wanted:
                cases.append(msgspec.structs.replace(case, configuration=configuration_of(name)))
    if not cases:
        raise PeakwardError(f"expected parts such as small:train_step, got {options.only!r}")
    return cases


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="where the JSON goes, written after every part")
    parser.add_argument("--device", choices=("cpu", "cuda"), default=probe.default_device())
    parser.add_argument("--sizes", default="small,xl,2.7B", help="or micro, for a CPU")
    parser.add_argument("--only", help="parts: small:train_step,2.7B:8x1024:forward")
    parser.add_argument("--configuration", help="ours: JSON or @file, one or by part's name")
    parser.add_argument("--pairs", type=int, default=10, help="turns of each arm")
    parser.add_argument("--turn-s", type=float, default=0.4)
    parser.add_argument("--budget-s", type=float, default=450.0, help="for the whole run")
    parser.add_argument("--max-autotune", action="store_true", help="try it for the peer")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> Report:
    """Every part within its share of the time that is left; what failed is in the report."""
    watch, started = Stopwatch(), monotonic()
    report = Report(
        environment=probe.environment(options.device),
        transformers=importlib.metadata.version("transformers"),
        torchao=float8.version(),
        started_at=watch.started_at,
        wall_s=0.0,
        arguments=sys.argv[1:],
    )
    peers = [(case, tried) for case in chosen_cases(options) for tried in peers_of(case, options)]
    for i, (case, tried) in enumerate(peers):
        left_s = options.budget_s - (monotonic() - started)
        effort = Effort(
            n_pairs=options.pairs,
            turn_s=options.turn_s,
            deadline_s=monotonic() + left_s / (len(peers) - i),
        )
        if not tried:
            ended: Outcome | Failed = Failed.of(case, "no peer in float8: torchao is not installed")
        elif left_s > 0:
            ended = part(case, tried, effort)
        else:
            ended = Failed.of(case, "not run: no time left")
        print(outcome.line(ended), file=sys.stderr, flush=True)
        report = report.extended(ended, watch.wall_s())
        outcome.write(report, options.out)
    return report


def peers_of(case: ModelCase, options: argparse.Namespace) -> Iterator[tuple[Setting, ...]]:
    """The settings of each peer of a part; none of a peer that is not installed."""
    whole_model = case.model.name in WHOLE_MODEL
    if case.configuration.precision == "fp8" and case.workload.pass_ == "train_step":
        there = float8.version() is not None
        yield float8_settings(case.device, whole_model=whole_model) if there else ()
    yield settings(case.device, whole_model=whole_model, max_autotune=options.max_autotune)


def part(case: ModelCase, tried: tuple[Setting, ...], effort: Effort) -> Outcome | Failed:
    """One of them, whatever comes of it."""
    try:
        return Duel(case, tried, effort).run()
    except Exception as error:  # noqa: BLE001  No part may end those behind it.
        return Failed.of(case, outcome.first_line(error))


def main() -> None:
    """Run, write the JSON, print the tables."""
    try:
        print(outcome.markdown(run(parse(None))))
    except PeakwardError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
