"""Published training runs on many GPUs beside plans of the same layouts.

    python benchmarks/published_runs.py

Prints each run with its error and the parts of the predicted step. Nothing is run.
"""

import statistics
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from peakward.hardware import devices
from peakward.models.presets import MODELS
from peakward.prediction.flops import step_flops
from peakward.prediction.parallel.candidate import Candidate, HostSeconds
from peakward.prediction.parallel.layouts import interconnect
from peakward.prediction.parallel.price import PARTS, Priced, price
from peakward.prediction.parallel.rank_costs import CostTable
from peakward.prediction.time.device_model import device_model
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.device import Device, SourcedFigure
from peakward.records.layout import Layout
from peakward.records.layouts import Network
from peakward.records.model_shape import ModelShape

DATA = Path(__file__).with_suffix(".toml")
AXES = ("dp", "data", "cp", "tp", "pp", "schedule", "stages_per_rank", "n_micro_batches")


class Run(NamedTuple):
    """One run, published and planned."""

    source: str
    model: str
    device: str
    layout: Layout
    published: float
    """Tokens/s of one GPU."""
    planned: float
    priced: Priced

    @property
    def error(self) -> float:
        """Planned over published, less 1: above 0 the plan is too fast."""
        return self.planned / self.published - 1


@cache
def data() -> dict[str, Any]:
    """The file."""
    return tomllib.loads(DATA.read_text(encoding="utf-8"))


def runs() -> Iterator[Run]:
    """Every run of the file."""
    shapes = {each.name: each for each in MODELS}
    shapes |= {name: ModelShape(name=name, **given) for name, given in data()["shapes"].items()}
    for given in data()["run"]:
        yield _run(given, shapes[given["model"]])


def _run(given: dict[str, Any], shape: ModelShape) -> Run:
    device = _device(given)
    case = ModelCase(
        model=shape,
        workload=Workload(batch_size=1, seq_len=given["seq_len"]),
        configuration=Configuration(
            precision="bf16-mixed",
            attention=given["attention"],
            compile=given["compile"],
            optimizer="adamw-fused",
        ),
        device="cuda",
    )
    layout = Layout(**{name: given[name] for name in AXES if name in given})
    candidate = Candidate(
        layout,
        given["micro_batch_size"],
        given["recomputed"],
        given.get("reduce_bytes", 2),
        given.get("reduces_each", False),
        host=HostSeconds(0.0, 0.0),  # Nothing is known of their hosts.
    )
    # All of them compute in 16 bits without autocast's casts, as our sharding strategies do.
    table = CostTable(case, device_model(None, device, host_is_known=False))
    costs = table.of(candidate.micro_batch_size, layout.tp, "fsdp", layout.cp)
    priced = price(case, candidate, costs, interconnect(device, layout.n_ranks, Network()))
    n_sequences = candidate.micro_batch_size * layout.n_micro_batches * layout.dp
    planned = n_sequences * given["seq_len"] / priced.step_s / layout.n_ranks
    published = _published(given, case)
    return Run(given["source"], shape.name, device.key, layout, published, planned, priced)


def _device(given: dict[str, Any]) -> Device:
    """As the catalogue has it, with what the run's source says of its own."""
    device = devices.device(given["device"])
    source = data()["sources"][given["source"]]
    if "bytes_per_s" in given:
        rate = SourcedFigure(value=given["bytes_per_s"], source=source)
        device = msgspec.structs.replace(device, bytes_per_s=rate)
    if "power_w" in given:
        assert device.power_w is not None
        slower = (given["power_w"] / device.power_w.value) ** (1 / 3)
        peaks = {
            kind: SourcedFigure(value=slower * peak.value, source=source)
            for kind, peak in device.peak_flops_per_s.items()
        }
        device = msgspec.structs.replace(device, peak_flops_per_s=peaks)
    return device


def _published(given: dict[str, Any], case: ModelCase) -> float:
    if "tokens_per_s" in given:
        return float(given["tokens_per_s"])
    if "model_tflops_per_s" in given:
        flops = step_flops(case)
        assert flops is not None
        return float(given["model_tflops_per_s"]) * 1e12 * case.workload.seq_len / flops
    return float(given["megatron_tflops_per_s"]) * 1e12 / _megatron_flops(case)


def _megatron_flops(case: ModelCase) -> float:
    """Of one token: 96·l·h²·(1 + s/6h + V/16lh)."""
    shape, s = case.model, case.workload.seq_len
    n, h = shape.n_layers, shape.d_model
    return 96 * n * h**2 * (1 + s / (6 * h) + shape.vocab_size / (16 * n * h))


def median_error(found: Sequence[Run]) -> float:
    """Of the errors without their signs."""
    return statistics.median(abs(each.error) for each in found)


def main() -> None:
    """Prints."""
    found = list(runs())
    groups: dict[str, list[Run]] = defaultdict(list)
    print(f"{'run':38}{'layout':24}{'published':>10}{'planned':>9}{'error':>7}  parts of the step")
    for each in found:
        shares = (
            f"{name} {100 * seconds / each.priced.step_s:.0f}%"
            for name, seconds in zip(PARTS, each.priced.parts, strict=True)
            if seconds > 0.005 * each.priced.step_s
        )
        name = f"{each.source} {each.model} {each.device.split('-')[0]}"
        print(
            f"{name:38}{each.layout.name:24}{each.published:10,.0f}{each.planned:9,.0f}"
            f"{100 * each.error:+6.0f}%  {', '.join(shares)}"
        )
        groups[f"{each.source} on {each.device.split('-')[0]}"].append(each)
    for group, own in groups.items():
        print(f"{group}: {len(own)} runs, median error {100 * median_error(own):.0f}%")
    print(f"all: {len(found)} runs, median error {100 * median_error(found):.0f}%")


if __name__ == "__main__":
    main()
