"""Peakward: how fast a Transformer runs here, why not faster, and which lever gets it there.

What the command line does, from Python:

    import peakward as pw

    case = pw.case("tiny", batch_size=2, seq_len=128, levers=("sdpa",))
    measurement = pw.measure(case)
    print(measurement.status, measurement.summary.median_s)

    forecast = pw.predict(pw.case("llama-3-8b", batch_size=1, seq_len=4096, device="cuda"), "h100-sxm-80")
    print(forecast.step_s, forecast.fits)

    study = pw.run(case, levers=("compile", "fused-optimizer"), budget_s=60.0)
    print(study.best_command)
    print(pw.markdown(study))

    study = pw.investigate(step, model=model, optimizer=optimizer)  # a training step of your own

    trace = pw.trace("step.json.gz")
    print(trace.breakdown().together, trace.kernels()[:10])
    print(pw.findings(trace).findings)

    with pw.watch(every=100) as watch:
        for batch in watch.batches(loader):
            ...
            watch.step()

    print(pw.memory("snapshot.pickle").report().devices[0].peak)

Names are loaded when one is first used: importing this package loads neither torch nor anything
else that is slow. Cases run in a worker process, which `python -c` and notebooks need no guard for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peakward.front_door import (
        Configuration,
        Measurement,
        ModelCase,
        ModelShape,
        ModuleCase,
        PeakwardError,
        Protocol,
        ServingWorkload,
        Store,
        Study,
        Workload,
        bench,
        calibrate,
        case,
        compare,
        device,
        findings,
        floor,
        html,
        investigate,
        lever,
        load,
        markdown,
        measure,
        measure_step,
        model,
        module_case,
        plan,
        plan_serving,
        predict,
        run,
        study,
        watch,
    )
    from peakward.trace_files import trace
    from peakward.traces.memory.memory import memory

__version__ = "0.1.0"

__all__ = [
    "Configuration",
    "Measurement",
    "ModelCase",
    "ModelShape",
    "ModuleCase",
    "PeakwardError",
    "Protocol",
    "ServingWorkload",
    "Store",
    "Study",
    "Workload",
    "__version__",
    "bench",
    "calibrate",
    "case",
    "compare",
    "device",
    "findings",
    "floor",
    "html",
    "investigate",
    "lever",
    "load",
    "markdown",
    "measure",
    "measure_step",
    "memory",
    "model",
    "module_case",
    "plan",
    "plan_serving",
    "predict",
    "run",
    "study",
    "trace",
    "watch",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'peakward' has no attribute {name!r}")
    if name == "trace":
        # Not by the front door: the command line's modules take 0.08 s to load, a tenth of what a
        # trace of 200 MB takes.
        from peakward.trace_files import trace

        return trace
    if name == "memory":
        from peakward.traces.memory.memory import memory

        return memory
    from peakward import front_door

    return getattr(front_door, name)


def __dir__() -> list[str]:
    return sorted(__all__)
