"""Reports the work of torch.compile, from its own counters."""

import sys
from collections.abc import Iterable, Mapping
from statistics import median

from peakward.lab.measure.failure import shorten
from peakward.records.measurement import CompileReport, Run


def reset() -> None:
    """Forgets all compiled code and counts; does nothing where the compiler was never imported.

    Importing it takes a second or two, which a case without compilation should not pay.
    """
    if "torch._dynamo" not in sys.modules:
        return
    import torch._dynamo
    from torch._dynamo.utils import clear_compilation_metrics, counters

    torch._dynamo.reset()
    counters.clear()
    clear_compilation_metrics()


def read(run: Run) -> CompileReport:
    """The report since the last `reset`, for a case that compiles."""
    from torch._dynamo.utils import counters, get_compilation_metrics

    recompilations = [
        metric.recompile_reason
        for metric in get_compilation_metrics()
        if metric.recompile_reason is not None
    ]
    return report(run, counters, recompilations)


def report(
    run: Run, counters: Mapping[str, Mapping[str, int]], recompilations: Iterable[str]
) -> CompileReport:
    """The report from Dynamo's counters by group and name, and the reason of every recompilation."""
    recompilations = list(recompilations)
    breaks = counters.get("graph_break", {})
    return CompileReport(
        compile_s=compile_s(run),
        n_graphs=counters.get("stats", {}).get("unique_graphs", 0),
        n_graph_breaks=sum(breaks.values()),
        n_recompiles=len(recompilations),
        reasons=_reasons(breaks, recompilations),
        n_cached_graphs=counters.get("inductor", {}).get("fxgraph_cache_hit", 0),
    )


def compile_s(run: Run) -> float:
    """The seconds of warm-up beyond as many steady steps; without warm-up, those of the first step.
    Never below 0."""
    first = run.warmup_s or run.steps_s[:1]
    return max(0.0, sum(first) - len(first) * median(run.steps_s))


def _reasons(breaks: Iterable[str], recompilations: Iterable[str]) -> tuple[str, ...]:
    """The reasons, each once. Hints and links after the first line of a break's text are left out, and
    so is the number of the graph before a recompilation's reason, which differs from layer to layer."""
    texts = [f"graph break: {shorten(text.strip().splitlines()[0])}" for text in breaks]
    for text in recompilations:
        _, _, guard = text.partition(": ")
        texts.append(f"recompiled: {shorten(guard or text)}")
    return tuple(dict.fromkeys(texts))
