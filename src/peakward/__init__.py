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

    fast = pw.optimize(model, batch, optimizer=optimizer)  # in place, proved; fast.undo() takes it back

    study = pw.investigate(step, model=model, optimizer=optimizer)  # a training step of your own

    trace = pw.trace("step.json.gz")
    print(trace.breakdown().together, trace.kernels()[:10])
    print(pw.findings(trace).findings)

    with pw.watch(every=100) as watch:
        for batch in watch.batches(loader):
            ...
            watch.step()

    print(pw.memory("snapshot.pickle").report().devices[0].peak)

    hunt = pw.debug(step, model=model, optimizer=optimizer, batches=loader)  # where a NaN came from

    print(pw.generate("smollm2", "The capital of France is").tokens_per_s)

Names are loaded when one is first used: importing this package loads neither torch nor anything
else that is slow. Cases run in a worker process, which `python -c` and notebooks need no guard for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peakward.api.cases import case as case
    from peakward.api.cases import lever as lever
    from peakward.api.cases import model as model
    from peakward.api.cases import module_case as module_case
    from peakward.api.debugging import debug as debug
    from peakward.api.generating import generate as generate
    from peakward.api.generating import serve as serve
    from peakward.api.investigating import run as run
    from peakward.api.layouts import plan_layouts as plan_layouts
    from peakward.api.live_steps import investigate as investigate
    from peakward.api.live_steps import watch as watch
    from peakward.api.measuring import bench as bench
    from peakward.api.measuring import calibrate as calibrate
    from peakward.api.measuring import compare as compare
    from peakward.api.measuring import measure as measure
    from peakward.api.measuring import measure_step as measure_step
    from peakward.api.measuring import study as study
    from peakward.api.optimizing import apply as apply
    from peakward.api.optimizing import optimize as optimize
    from peakward.api.patching import patch as patch
    from peakward.api.predictions import device as device
    from peakward.api.predictions import floor as floor
    from peakward.api.predictions import plan as plan
    from peakward.api.predictions import plan_serving as plan_serving
    from peakward.api.predictions import predict as predict
    from peakward.api.results import html as html
    from peakward.api.results import load as load
    from peakward.api.results import markdown as markdown
    from peakward.api.traces import findings as findings
    from peakward.api.traces import trace as trace
    from peakward.records.calibration import Calibration as Calibration
    from peakward.records.case import Configuration as Configuration
    from peakward.records.case import ModelCase as ModelCase
    from peakward.records.case import ModuleCase as ModuleCase
    from peakward.records.case import Workload as Workload
    from peakward.records.errors import PeakwardError as PeakwardError
    from peakward.records.inference import ServingWorkload as ServingWorkload
    from peakward.records.measurement import Measurement as Measurement
    from peakward.records.measurement import Protocol as Protocol
    from peakward.records.model_shape import ModelShape as ModelShape
    from peakward.records.study import Study as Study
    from peakward.store.database import Store as Store
    from peakward.traces.memory.memory import memory as memory

__version__ = "0.1.0"

_HOMES = {
    "api.cases": ("case", "lever", "model", "module_case"),
    "api.debugging": ("debug",),
    "api.generating": ("generate", "serve"),
    "api.investigating": ("run",),
    "api.layouts": ("plan_layouts",),
    "api.live_steps": ("investigate", "watch"),
    "api.measuring": ("bench", "calibrate", "compare", "measure", "measure_step", "study"),
    "api.optimizing": ("apply", "optimize"),
    "api.patching": ("patch",),
    "api.predictions": ("device", "floor", "plan", "plan_serving", "predict"),
    "api.results": ("html", "load", "markdown"),
    "api.traces": ("findings", "trace"),
    "records.calibration": ("Calibration",),
    "records.case": ("Configuration", "ModelCase", "ModuleCase", "Workload"),
    "records.errors": ("PeakwardError",),
    "records.inference": ("ServingWorkload",),
    "records.measurement": ("Measurement", "Protocol"),
    "records.model_shape": ("ModelShape",),
    "records.study": ("Study",),
    "store.database": ("Store",),
    "traces.memory.memory": ("memory",),
}
"""Where each public name is: a name loads its own module alone, so that reading a trace loads no search."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(("__version__", *_HOME_OF))  # noqa: PLE0605


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'peakward' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"peakward.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
