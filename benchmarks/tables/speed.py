"""Kernels against the best of torch: each contest as it was last measured."""

import json
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from kernels.results import Arm, Outcome
from stored_results import Result, index
from tables.layout import duration, table, times

OURS = "peakward"
NOTICED = 0.02
"""A speed-up of less, either way, counts as equal."""
OPERATORS = {
    "flash_attention": "scaled_dot_product_attention",
    "decode_attention": "attention of up to 8 queries to a long cache",
    "cross_entropy": "F.cross_entropy, its mean",
    "linear_cross_entropy": "F.linear, then F.cross_entropy",
    "rms_norm": "F.rms_norm, alone or behind the residual's addition",
    "layer_norm": "F.layer_norm, the same",
    "softmax": "torch.softmax over the last dimension",
    "rope": "the rotation written out",
    "swiglu": "silu(gate) * up written out",
    "quantized_matmul": "F.linear with a weight of 8 or 4 bits",
}
VARIANTS = {
    ("flash_attention", "peakward"): "hopper",
    ("flash_attention", "peakward triton"): "triton",
    ("linear_cross_entropy", "peakward"): "chunked",
    ("linear_cross_entropy", "peakward recomputed"): "recomputed",
}
"""What an arm of the results is called as an implementation."""
WRITES = "†"
"""Of what was timed behind a flush that writes."""


class Last(NamedTuple):
    """A contest, and the result that has its last measurement."""

    outcome: Outcome
    result: Result

    @property
    def ours(self) -> Arm:
        """Peakward's."""
        return next(each for each in self.outcome.arms if each.name == OURS)

    @property
    def peer(self) -> Arm | None:
        """The fastest of torch's."""
        named = [each for each in self.outcome.arms if each.name == self.outcome.best_peer]
        return named[0] if named else None


def last(operator: str, device: str = "h100-sxm-80") -> list[Last]:
    """Every contest of an operator on a device, as it was last measured."""
    found: dict[str, Last] = {}
    for result in index().of("kernel-speed", device=device, subject=operator):
        for each in json.loads(result.read())["outcomes"]:
            found[json.dumps(each["shape"], sort_keys=True)] = Last(
                msgspec.convert(each, Outcome), result
            )
    return list(found.values())


def contests(operator: str) -> str:
    """Shape by shape."""
    every = sorted(last(operator), key=_order)
    kind = _kind_name(every[0].outcome)
    shape = [kind, *(each for each in every[0].outcome.shape if each != kind)]
    others = _others(every)
    head = [*shape, "fastest of torch", "its time", "ours", *others]
    head += ["speed-up (95% interval)", "rate of ours"]
    rows = [
        [
            *(_word(each.outcome.shape[name]) for name in shape),
            each.outcome.best_peer or "none could",
            duration(each.peer.median_s if each.peer else None),
            duration(each.ours.median_s) + (WRITES if _writes(each) else ""),
            *(duration(_arms(each).get(f"{OURS} {other}")) for other in others),
            times(each.outcome.speed_over_best),
            _rate(each),
        ]
        for each in every
    ]
    return f"{table(head, rows, words=len(shape) + 1)}\n\n{_source(every)}"


def verdicts(operator: str) -> str:
    """How many shapes of each pass are won and lost."""
    every = last(operator)
    by_pass: dict[str, list[Last]] = {}
    for each in every:
        by_pass.setdefault(_kind(each.outcome), []).append(each)
    rows = [[kind, *_counts(found)] for kind, found in by_pass.items()]
    head = [
        _kind_name(every[0].outcome),
        "shapes",
        "faster",
        "equal within 2%",
        "slower",
        "speed-up",
    ]
    return table(head, rows, words=1)


def operators() -> str:
    """All operators that were timed, a row each."""
    rows = [
        [f"[`{name}`](kernels/{name}.md)", what, *_counts(last(name))]
        for name, what in OPERATORS.items()
    ]
    head = ["operator", "takes the place of", "shapes", "faster", "equal", "slower", "speed-up"]
    return table(head, rows, words=2)


def attention_lengths() -> str:
    """Speed over the fastest of torch's attention, by length and head dimension: 16,384 causal tokens."""
    found = {
        (each.outcome.shape["pass"], each.outcome.shape["d"], each.outcome.shape["seq"]): each
        for each in last("flash_attention")
        if each.outcome.shape["mask"] == "causal"
        and len(set(str(each.outcome.shape["heads"]).split("/"))) == 1
    }
    lengths = (512, 1024, 2048, 4096, 16384)
    rows = [
        [f"{pass_}, head dimension {head_dim}"]
        + [_estimate(found.get((pass_, head_dim, length))) for length in lengths]
        for pass_ in ("forward", "backward")
        for head_dim in (64, 80, 96, 128)
    ]
    return table(["16,384 causal tokens", *(f"{each:,}" for each in lengths)], rows, words=1)


def variants() -> str:
    """On how many shapes each of our variants is the fastest of ours, and of all."""
    rows = []
    for (operator, name), variant in VARIANTS.items():
        every = [_arms(each) for each in last(operator)]
        beside = [arms for arms in every if name in arms and len(_ours(arms)) > 1]
        ours = sum(arms[name] == min(_ours(arms)) for arms in beside)
        first = sum(arms[name] == min(arms.values()) for arms in beside)
        rows.append([f"`{operator}`", f"`{variant}`", str(len(beside)), str(ours), str(first)])
    head = ["operator", "variant", "shapes", "fastest of ours", "fastest of all"]
    return table(head, rows, words=2)


def _arms(each: Last) -> dict[str, float]:
    return {arm.name: arm.median_s for arm in each.outcome.arms if arm.median_s is not None}


def _ours(arms: dict[str, float]) -> list[float]:
    return [seconds for name, seconds in arms.items() if name.startswith(OURS)]


def _others(every: Iterable[Last]) -> list[str]:
    """Our variants beside the first, by name."""
    named = dict.fromkeys(name for each in every for name in _arms(each))
    return [name.removeprefix(f"{OURS} ") for name in named if name.startswith(f"{OURS} ")]


def _estimate(each: Last | None) -> str:
    if each is None or each.outcome.speed_over_best is None:
        return "–"
    return f"{each.outcome.speed_over_best.estimate:.3f}×"


def _counts(found: Iterable[Last]) -> list[str]:
    ratios = [
        each.outcome.speed_over_best.estimate for each in found if each.outcome.speed_over_best
    ]
    faster = sum(each > 1 + NOTICED for each in ratios)
    slower = sum(each < 1 - NOTICED for each in ratios)
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}×"
    return [str(len(ratios)), str(faster), str(len(ratios) - faster - slower), str(slower), spread]


def _kind_name(outcome: Outcome) -> str:
    return next(name for name in ("pass", "cache", "weight") if name in outcome.shape)


def _kind(outcome: Outcome) -> str:
    return str(outcome.shape[_kind_name(outcome)])


def _order(each: Last) -> tuple[tuple[str, int | str], ...]:
    """By kind, then by the shape's numbers."""
    numbers = [value for value in each.outcome.shape.values() if isinstance(value, int)]
    return (("", _kind(each.outcome)), *(("", number) for number in numbers))


def _word(value: int | str | bool) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _rate(each: Last) -> str:
    outcome, ours = each.outcome, each.ours
    if ours.median_s is None:
        return "–"
    if outcome.read_s is not None:
        return f"{outcome.read_s / ours.median_s:.0%} of a read"
    if outcome.copy_s is not None:
        return f"{outcome.copy_s / ours.median_s:.0%} of a copy"
    return f"{ours.flops_per_s / 1e12:.0f} TFLOP/s" if ours.flops_per_s else "–"


def _writes(each: Last) -> bool:
    return each.result.protocol == "cold-write"


def _source(every: list[Last]) -> str:
    results = dict.fromkeys(each.result.name for each in every)
    names = ", ".join(f"`{name}`" for name in sorted(results))
    return f"{_device(every)}, from a cold L2{_flushes(every)}. The last measurement of each shape: {names}."


def _device(every: list[Last]) -> str:
    """What ran them: device and versions."""
    told = json.loads(every[-1].result.read())
    return (
        f"{told['device']}, torch {told['torch']}, triton {told['triton']}, cuDNN {told['cudnn']}"
    )


def _flushes(every: list[Last]) -> str:
    """What the mark means, where it is there."""
    if not any(map(_writes, every)):
        return ""
    return f"; {WRITES} flushed by writing, for which a call also waits, else by reading"
