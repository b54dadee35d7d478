"""DiagnosisInput made by hand: a profile from a few kernels and idle causes, cases, measurements."""

from typing import Any

import msgspec

from peakward.diagnose.diagnosis_input import DiagnosisInput, Symptom
from peakward.diagnose.examine import RULES
from peakward.hardware.devices import device
from peakward.levers.catalogue import lever
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.site import site
from peakward.records.case import ModelCase, Workload
from peakward.records.finding import Abstention
from peakward.records.measurement import (
    Environment,
    Interval,
    Measurement,
    MemoryUse,
    Protocol,
    Summary,
    Validity,
)
from peakward.records.model_shape import ModelShape
from peakward.records.profile import (
    Breakdown,
    CriticalPath,
    DeviceIdle,
    DeviceTime,
    HostWork,
    Idle,
    KernelGroup,
    OperatorRate,
    Profile,
    Transfers,
)

MS = 1_000_000
H100 = site(device("h100-sxm-80"))
ENVIRONMENT = Environment(
    device_type="cuda",
    device_name="NVIDIA H100 80GB HBM3",
    device_memory_bytes=80 * 2**30,
    n_cores=8,
    python="3.11",
    system="Linux",
    peakward="0.1.0",
)
SHAPE = ModelShape(
    name="by hand",
    vocab_size=10_000,
    n_layers=12,
    d_model=768,
    d_ff=3072,
    n_heads=12,
    n_kv_heads=12,
    head_dim=64,
    max_seq_len=4096,
)
CAUSES = (
    *("profiler", "data_loading", "synchronisation", "after_synchronisation", "host_bound"),
    *("graph_start", "stream_wait", "unseen", "queued", "launch_latency", "unknown"),
)


def kernel(name: str, ms: float, category="matmul", phase="forward", n=10, fused=()) -> KernelGroup:
    """Kernels of equal length."""
    ns = round(ms * MS)
    each = ns // n
    return KernelGroup(
        name=name,
        category=category,
        phase=phase,
        n=n,
        total_ns=ns,
        share=0.0,
        mean_ns=each,
        median_ns=each,
        min_ns=each,
        max_ns=each,
        std_ns=0.0,
        fused=fused,
    )


PRODUCTS = kernel("nvjet_sm90_tst_128x128_64x6_1x1_h_bz_TNT", 100.0)
"""100 ms of work that no rule has anything against."""


def profile(*kernels: KernelGroup, idle: dict[str, float] | None = None, **others: Any) -> Profile:
    """One step of these kernels, one after another, and idle milliseconds by cause.

    `others` replace fields of the profile, and of its breakdown those that are its own.
    """
    found = sorted(kernels or (PRODUCTS,), key=lambda each: -each.total_ns)
    busy_ns = sum(each.total_ns for each in found)
    by_cause = dict.fromkeys(CAUSES, 0) | {
        cause: round(ms * MS) for cause, ms in (idle or {}).items()
    }
    idle_ns = sum(by_cause.values())
    times = {name: others.pop(name) for name in DeviceTime.__struct_fields__ if name in others}
    together = DeviceTime(
        **dict.fromkeys(DeviceTime.__struct_fields__, 0)
        | {"device": None, "span_ns": busy_ns + idle_ns, "busy_ns": busy_ns}
        | {"n_compute": sum(each.n for each in found)}
        | times
    )
    alone_ns = together.exposed_communication_ns + together.exposed_memory_ns
    together = msgspec.structs.replace(together, compute_ns=together.busy_ns - alone_ns)
    gaps = DeviceIdle(
        device=None, n_gaps=1, idle_ns=idle_ns, by_cause_ns=by_cause, longest_ns=idle_ns
    )
    fields = {
        **dict.fromkeys(Profile.__struct_fields__, ()),
        **dict.fromkeys(("rank", "world_size", "selection", "path", "host", "accelerator")),
        "source": "by hand",
        "format": "torch",
        "n_steps": 1,
        "unnamed_share": 0.0,
        "devices": (ENVIRONMENT.device_name,),
        "breakdown": Breakdown(devices=(together,), together=together, span_ns=together.span_ns),
        "idle": Idle(devices=(gaps,), together=gaps),
        "kernels": tuple(found),
    }
    return Profile(**fields | others)


def of_host(*kernels: KernelGroup) -> Profile:
    """The same of the host's operators."""
    return profile(*kernels, devices=("CPU",), idle=None) if kernels else profile(devices=("CPU",))


def path(**by_kind_ms: float) -> CriticalPath:
    """Of these kinds."""
    by_kind = {kind: round(ms * MS) for kind, ms in by_kind_ms.items()}
    return CriticalPath(span_ns=sum(by_kind.values()), by_kind_ns=by_kind, shares=())


def transfer(what: str, n: int, n_bytes: int, ms: float) -> Transfers:
    """Copies of one direction."""
    ns = round(ms * MS)
    return Transfers(
        what=what, n=n, n_bytes=n_bytes, largest_bytes=n_bytes, sum_ns=ns, united_ns=ns,
        bytes_per_s=None,
    )  # fmt: skip


def operator(name: str, dims: str, ms: float, roof_share: float | None = None) -> OperatorRate:
    """One operator with its kernels' time."""
    return OperatorRate(
        name=name, dims=dims, dtype="c10::BFloat16", n=1, flops=None, n_bytes=None,
        kernel_ns=round(ms * MS), flops_per_s=None, bytes_per_s=None, roof_share=roof_share,
    )  # fmt: skip


def host(*calls, n_python=0, collections=None) -> HostWork:
    """What the host called."""
    return HostWork(calls=calls, n_python=n_python, collections=collections)


def case(*, shape: ModelShape = SHAPE, workload: dict | None = None, **settings: Any) -> ModelCase:
    """A training step on a GPU, fp32 and eager but for `settings`."""
    work = Workload(**{"batch_size": 4, "seq_len": 512} | (workload or {}))
    made = ModelCase(model=shape, workload=work, device="cuda")
    configuration = msgspec.structs.replace(made.configuration, **settings)
    return msgspec.structs.replace(made, configuration=configuration)


def measurement(of: ModelCase, median_s: float = 0.1, **changes: Any) -> Measurement:
    """One that went well, but for `changes`."""
    interval = Interval(estimate=median_s, low=median_s, high=median_s)
    made = Measurement(
        id="m",
        case=of,
        protocol=Protocol(),
        environment=ENVIRONMENT,
        started_at="",
        wall_s=1.0,
        status="ok",
        summary=Summary(median_s=interval, mean_s=median_s, sd_s=0.0, min_s=median_s, n=10),
        validity=Validity(verdict="stable"),
        memory=MemoryUse(peak_allocated_bytes=2**30, peak_reserved_bytes=2**30),
    )
    return msgspec.structs.replace(made, **changes)


def given(found: Profile | None = None, **others: Any) -> DiagnosisInput:
    """On an H100, but for `others`."""
    return DiagnosisInput(**{"subject": "by hand", "profile": found, "site": H100} | others)


def foretold(of: ModelCase, **others: Any) -> DiagnosisInput:
    """With a forecast and no profile."""
    return given(case=of, forecast=forecast(of, H100), **others)


def judge(code: str, given: DiagnosisInput):
    """What the rule of that code says, by levers that there are."""
    found = next(each for each in RULES if each.code == code).judge(given)
    for name in found.levers if isinstance(found, Symptom) else ():
        lever(name)
    return found


def abstains(code: str, given: DiagnosisInput) -> bool:
    """Whether it cannot judge, and says for want of what."""
    found = judge(code, given)
    return isinstance(found, Abstention) and found.code == code and all(found.missing)
