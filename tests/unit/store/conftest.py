"""Records to store, each made by a factory that takes what a test cares about."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peakward.records.calibration import Calibration, MatmulRate
from peakward.records.case import ModelCase, StepCase, Workload
from peakward.records.lever import Trial
from peakward.records.measurement import Environment, Measurement, Protocol, Run
from peakward.records.memory import CaseMemory
from peakward.records.model_shape import ModelShape
from peakward.records.profile import Breakdown, CaseProfile, DeviceTime, Profile
from peakward.records.study import Study

SHAPE = ModelShape(
    name="tiny",
    vocab_size=100,
    n_layers=2,
    d_model=8,
    d_ff=16,
    n_heads=2,
    n_kv_heads=2,
    head_dim=4,
    max_seq_len=32,
)


def environment(**fields: Any) -> Environment:
    return Environment(
        **{
            "device_type": "cpu",
            "device_name": "A CPU",
            "device_memory_bytes": 2**34,
            "n_cores": 2,
            "python": "3.11.7",
            "system": "Linux 6.1",
            "peakward": "0.1.0",
        }
        | fields
    )


def case(name: str = "step") -> StepCase:
    return StepCase(name=name, fingerprint="f", device="cpu")


def model_case(batch_size: int = 4) -> ModelCase:
    return ModelCase(
        model=SHAPE, workload=Workload(batch_size=batch_size, seq_len=16), device="cpu"
    )


def measurement(id: str = "m1", **fields: Any) -> Measurement:
    defaults = {
        "case": case(),
        "protocol": Protocol(),
        "environment": environment(),
        "started_at": "2026-11-21T10:00:00+00:00",
        "wall_s": 1.5,
        "status": "ok",
        "runs": (Run(warmup_s=(0.5,), steps_s=(0.25, 0.125)),),
    }
    return Measurement(id=id, **(defaults | fields))


def trial(id: str = "t1", **fields: Any) -> Trial:
    defaults = {
        "lever": "bf16",
        "base": model_case(4),
        "candidate": model_case(8),
        "environment_key": "here",
        "stage": "screened",
        "verdict": "kept",
        "reason": "faster",
    }
    return Trial(id=id, **(defaults | fields))


def calibration(**fields: Any) -> Calibration:
    defaults = {
        "environment": environment(),
        "started_at": "2026-11-21T10:00:00+00:00",
        "wall_s": 2.0,
        "matmul": (MatmulRate(compute_type="fp32", size=1024, flops_per_s=1e11),),
        "copy_bytes_per_s": 1e10,
        "copy_size_bytes": 2**28,
    }
    return Calibration(**(defaults | fields))


def profile(id: str = "p1", **fields: Any) -> CaseProfile:
    times = dict.fromkeys(
        each for each in DeviceTime.__struct_fields__ if each.endswith("_ns") or each[:2] == "n_"
    )
    together = DeviceTime(device=None, **dict.fromkeys(times, 0))
    defaults = {
        "case": model_case(),
        "environment_key": "here",
        "n_steps": 3,
        "profiled_step_s": 0.5,
        "trace": "0123456789abcdef.json.gz",
        "profile": Profile(
            **dict.fromkeys(Profile.__struct_fields__, ())
            | {"source": "t.json.gz", "format": "torch", "unnamed_share": 0.0}
            | dict.fromkeys(
                (
                    "rank",
                    "world_size",
                    "n_steps",
                    "selection",
                    "idle",
                    "path",
                    "host",
                    "accelerator",
                )
            )
            | {"breakdown": Breakdown(devices=(), together=together, span_ns=0)}
        ),
    }
    return CaseProfile(id=id, **(defaults | fields))


def case_memory(id: str = "h1", **fields: Any) -> CaseMemory:
    defaults = {
        "case": model_case(),
        "environment_key": "here",
        "snapshot": "0123456789abcdef.pickle.gz",
        "peak_bytes": 512,
        "counted_peak_bytes": 512,
        "reserved_bytes": 2**21,
        "phases": (),
        "purposes": ("parameters",),
        "timeline": (),
        "modules": (),
        "largest": (),
    }
    return CaseMemory(id=id, **(defaults | fields))


def study(id: str = "s1", **fields: Any) -> Study:
    defaults = {
        "name": "run",
        "title": "How fast tiny runs",
        "command": "peakward run",
        "environment": environment(),
        "started_at": "2026-11-21T10:00:00+00:00",
        "wall_s": 9.0,
        "complete": True,
        "measurements": (),
    }
    return Study(id=id, **(defaults | fields))


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """The factories above."""
    factories: tuple[Callable[..., Any], ...] = (
        environment,
        case,
        model_case,
        measurement,
        trial,
        calibration,
        profile,
        case_memory,
        study,
    )
    return SimpleNamespace(**{factory.__name__: factory for factory in factories})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a database may be."""
    return tmp_path / "peakward.db"
