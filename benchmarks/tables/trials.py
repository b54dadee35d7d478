"""Tables of trials, whose files have shapes of their own."""

import json
from statistics import median

from peakward.records import codec
from peakward.records.lever import Trial
from peakward.records.study import Study
from peakward.report.cases import label
from stored_results import index
from tables.layout import duration, faster, table

HOST = "2026-11-24-h200-kernel-calls-2"
LEVERS = (
    *("flash", "flash-hopper", "flash-decode", "fused-norm", "fused-rope", "fused-swiglu"),
    *("fused-loss", "chunked-loss", "recomputed-loss", "triton-optimizer", "bf16-states"),
    *("8bit-states", "int8-weights", "int4-weights"),
)
"""Those that put a kernel of ours into a step."""
LINEAR = "2026-11-23-h100-kernel-trials-linear_cross_entropy"


def host_costs() -> str:
    """Microseconds of the host for an eager call, ours beside torch's fastest."""
    found = json.loads(index()[HOST].read())
    rows = [
        [
            each["name"],
            "forward + backward" if each["gradients"] else "forward",
            *_beside_torch(each["us"]),
        ]
        for each in found["calls"]
    ]
    head = ["a call of", "", "ours", "by the registered operator", "torch", "ours over torch"]
    said = (
        "Microseconds of the host for a call, from Python, of tensors with next to no GPU work, the median "
        f"burst: {found['device']}, torch {found['torch']}, triton {found['triton']} (`{HOST}`)."
    )
    return f"{table(head, rows, words=2)}\n\n{said}"


def _beside_torch(us: dict[str, dict[str, float]]) -> list[str]:
    """Ours, ours by the registered operator, the fastest of torch's, and how many times that ours takes."""
    medians = {name: each["median"] for name, each in us.items()}
    ours, registered = medians.pop("ours"), medians.pop("registered")
    shown = [f"{ours:.0f} µs", f"{registered:.0f} µs"]
    if not medians:
        return [*shown, "–", "–"]
    best = min(medians.values())
    return [*shown, f"{best:.0f} µs", f"{ours / best:.2f}×"]


def linear_loss() -> str:
    """Time and peak memory of each form of the linear loss, shape by shape."""
    shapes = [
        each
        for each in json.loads(index()[LINEAR].read())["rounds"][-1]["shapes"]
        if "both" in each and "peak_mib" in each
    ]
    rows = [
        [
            " × ".join(f"{size:,}" for size in each["shape"]),
            *(
                duration(median(each["both"][form]))
                for form in ("compiled", "chunked", "recomputed")
            ),
            *(f"{each['peak_mib'][form]:,.0f}" for form in ("compiled", "chunked", "recomputed")),
        ]
        for each in sorted(shapes, key=lambda each: each["shape"])
    ]
    head = ["tokens × width × vocabulary", "torch compiled", "chunked", "recomputed"]
    head += ["peak MiB: torch", "chunked", "recomputed"]
    return f"{table(head, rows, words=1)}\n\nForward and backward, bf16: `{LINEAR}`."


def lever(*names: str) -> str:
    """What levers did to whole steps in stored runs, each against the same step without it."""
    rows = [
        [
            f"`{trial.lever}`",
            label(trial.base),
            faster(trial.time_ratio),
            "confirmed" if trial.stage == "confirmed" else "screened once",
            f"`{result.name}`",
        ]
        for result in index().of("run")
        for trial in codec.from_json(result.read(), Study).trials
        if trial.lever in names and trial.time_ratio is not None
    ]
    head = ["lever", "on top of", "speed-up of the step", "", "result"]
    return table(head, rows, words=5)


def levers() -> str:
    """The best that each lever of a kernel did to a step in stored runs."""
    tried: dict[str, list[Trial]] = {name: [] for name in LEVERS}
    for result in index().of("run"):
        for trial in codec.from_json(result.read(), Study).trials:
            if trial.lever in tried and trial.time_ratio is not None:
                tried[trial.lever].append(trial)
    rows = [[f"`{name}`", *_best(found)] for name, found in tried.items()]
    return table(["lever", "timed", "confirmed", "best speed-up", "on top of"], rows, words=1)


def _best(timed: list[Trial]) -> list[str]:
    kept = [each for each in timed if each.stage == "confirmed" and each.verdict == "kept"]
    if not timed:
        return ["0", "0", "–", "–"]
    best = min(kept or timed, key=lambda each: each.time_ratio.estimate)
    return [str(len(timed)), str(len(kept)), faster(best.time_ratio), label(best.base)]
