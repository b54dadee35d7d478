"""A lab that answers from a formula, so that a study's figures are known beforehand."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import pytest

from peakward.prediction.flops import recomputed_flops, step_flops
from peakward.prediction.parameters import n_parameters
from peakward.records.calibration import (
    SUBJECTS,
    Absence,
    Calibration,
    DiskRate,
    LevelRate,
    LinkRate,
    LoadLatency,
    Rates,
    Subject,
    TrafficRate,
)
from peakward.records.case import (
    Case,
    CollectivesCase,
    LayoutCase,
    MicroCase,
    ModelCase,
    NumericsCase,
    OperatorCase,
    QualityCase,
    SpeculationCase,
)
from peakward.records.debugging import Hunt, Watching
from peakward.records.measurement import (
    CompileReport,
    Environment,
    Feeding,
    FirstStep,
    Interval,
    Measurement,
    MemoryUse,
    PieceWork,
    Protocol,
    Run,
    Speculated,
    Status,
    Summary,
    Validity,
)
from peakward.records.memory import (
    CaseMemory,
    HeldPoint,
    KernelPhase,
    LargeAllocations,
    ModuleActivations,
    PeakMoment,
    PhasePeak,
    StepClock,
)
from peakward.records.memory_snapshot import MemoryShare
from peakward.records.numerics import Drift, Numerics, Rounding, TypeSeen
from peakward.records.parallel import (
    CollectiveTime,
    LinkCalibration,
    RanksWork,
    RankUse,
    Sent,
)
from peakward.records.profile import (
    Breakdown,
    CaseProfile,
    DeviceTime,
    KernelGroup,
    Profile,
    RangeWork,
    WorkPhase,
)
from peakward.records.study import Table
from peakward.stats.link_fit import bus_bytes, fitted
from peakward.studies.readings import Readings
from peakward.studies.recorder import Recorder
from peakward.studies.scope import Scope
from peakward.studies.setting import Setting

GIB = 2**30
RATE = {
    "fp32": 1e12,
    "tf32": 4e12,
    "bf16-mixed": 5e12,
    "fp16-mixed": 5e12,
    "fp8": 6e12,
    "bf16": 8e12,
}
STATE_BYTES = dict.fromkeys(RATE, 16) | {"bf16": 8}
KEPT = {"none": 1.0, "sqrt": 0.5, "every-block": 0.25, "selective": 0.75}
COMPILED_GAIN = 2.0
COMPILE_S = 30.0


def environment(device: str = "cuda", memory_bytes: int = 80 * GIB) -> Environment:
    return Environment(
        device_type=device,
        device_name="a device",
        device_memory_bytes=memory_bytes,
        compute_capability="9.0" if device == "cuda" else None,
        n_cores=2,
        python="3.11",
        system="a system",
        peakward="0",
    )


FUSED_GAIN = 8.0


def true_step_s(case: Case) -> float:
    """Its FLOPs, recomputed ones too, over a rate by precision; compiled twice as fast, fused eight
    times. Of a piece of code a nanosecond for each product of its sizes, in bf16 half of it, times
    `SLOWNESS`."""
    if isinstance(case, SpeculationCase):
        return case.n_new_tokens * 1e-3 / SPEED_UP[case.draft]
    if isinstance(case, QualityCase | NumericsCase):
        return 1e-3
    if isinstance(case, CollectivesCase):
        return 1e-5 + max(case.sizes_bytes) / 1e11
    if isinstance(case, LayoutCase):
        alone_s = true_step_s(case.of_one_rank)
        if case.layout.n_ranks == 1:
            return alone_s
        return alone_s / EFFICIENCY.get(case.layout.data if case.layout.dp > 1 else "split", 0.9)
    if isinstance(case, MicroCase):
        extent = math.prod(case.sizes) ** (3 if case.subject == "matmul" else 1)
        return (
            SLOWNESS.get(case.piece, 1.0) * extent * (5e-10 if case.precision == "bf16" else 1e-9)
        )
    if isinstance(case, OperatorCase):
        step_s, compiled = (step_flops(case) or 0) / RATE[case.precision], case.compile
        step_s /= 1.0 if case.attention == "naive" else FUSED_GAIN
    else:
        flops = (step_flops(case) or 0) + recomputed_flops(case)
        if isinstance(case, ModelCase) and case.configuration.kv_cache == "none":
            flops *= case.workload.seq_len
        step_s = flops / RATE[case.configuration.precision] * (1 + waited(case) + copied(case))
        compiled = case.configuration.compile
    return step_s / (1.0 if compiled == "none" else COMPILED_GAIN)


EFFICIENCY = {"ddp": 0.95, "overlapped": 0.96, "flat": 0.8, "per-parameter": 0.7, "split": 0.6}


def links(case: CollectivesCase) -> LinkCalibration:
    """10 µs and 100 GB/s for all-reduces, half of the rate for gatherings."""
    times = tuple(
        CollectiveTime(
            collective=name,
            n_bytes=size,
            time_s=1e-5 + bus_bytes(name, size, case.n_ranks) / rate,
            bus_bytes_per_s=rate,
        )
        for size in case.sizes_bytes
        for name, rate in (("all-reduce", 1e11), ("all-gather", 5e10))
    )
    return LinkCalibration(
        started_at="2026-11-21T00:00:00+00:00",
        wall_s=1.0,
        device_name="a device",
        n_ranks=case.n_ranks,
        backend="nccl" if case.device == "cuda" else "gloo",
        torch="2",
        times=times,
        fits=tuple(
            fitted([each for each in times if each.collective == name], case.n_ranks)
            for name in ("all-reduce", "all-gather")
            if len(case.sizes_bytes) > 1
        ),
    )


def ranks_work(case: LayoutCase) -> RanksWork:
    """16 bytes a parameter, of which sharding leaves a part; a quarter of the communication is exposed."""
    n_bytes, layout = 4 * n_parameters(case.model), case.layout
    kept = n_bytes // (layout.dp if layout.data == "fsdp" else 1) // layout.tp // layout.pp
    held = {"parameters": kept, "gradients": kept, "optimizer_state": 2 * kept}
    on_gpu, several = case.device == "cuda", layout.n_ranks > 1
    use = RankUse(
        built_bytes=kept if on_gpu else None,
        between_bytes=4 * kept if on_gpu else None,
        peak_bytes=5 * kept if on_gpu else None,
        held_bytes=held,
        sent=(Sent(collective="all-reduce", n_calls=2, n_bytes=n_bytes),) if several else (),
        communication_s=4e-3 if on_gpu and several else None,
        exposed_s=1e-3 if on_gpu and several else None,
    )
    return RanksWork(backend="nccl" if on_gpu else "gloo", ranks=(use,) * layout.n_ranks)


SPEED_UP = {
    "ngrams": 1.5,
    "skip:12-17": 0.5,
    "skip:6-23": 0.4,
    "distilled:12-17": 0.7,
    "distilled:6-23": 0.6,
}


def speculated(case: SpeculationCase, factor: float) -> Speculated:
    """Half of the rounds accept all guesses and half none, of a distilled draft two thirds and a third. A
    pass takes 1.1 steps, and a draft's half of one."""
    n_rounds = case.n_prompts * (case.n_new_tokens - 1) * 2 // (case.guesses + 2)
    half = n_rounds * 2 // 3 if case.draft.startswith("distilled:") else n_rounds // 2
    wobble = tuple(1 + 0.01 * (n % 2) for n in range(case.n_prompts))
    return Speculated(
        plain_s=tuple(case.n_new_tokens * 1e-3 * factor * each for each in wobble),
        accepted=(n_rounds - half, *(0,) * (case.guesses - 1), half),
        n_rounds=n_rounds,
        n_equal=case.n_prompts,
        step_s=1e-3,
        check_s=1.1e-3,
        draft_s=0.0 if case.draft == "ngrams" else 0.5e-3,
        draft_parameters=0 if case.draft == "ngrams" else 10**8,
    )


def waited(case: Case) -> float:
    """For data, over the step's own time: half of it where the step itself tokenises, else a fiftieth."""
    data = case.workload.data if isinstance(case, ModelCase) else None
    if data is None:
        return 0.0
    return 0.5 if data.tokenise == "on-the-fly" and data.n_workers == 0 else 0.02


def copied(case: Case) -> float:
    """To the device, over the step's own time: a tenth where copies block."""
    data = case.workload.data if isinstance(case, ModelCase) else None
    return 0.0 if data is None or data.non_blocking else 0.1


def feeding(case: Case, n_steps: int) -> Feeding | None:
    """Of a text of a thousand sequences; a GPU idles while the host waits."""
    if not isinstance(case, ModelCase) or (data := case.workload.data) is None:
        return None
    own_s = true_step_s(case) / (1 + waited(case) + copied(case))
    wait_s = (own_s * waited(case),) * n_steps
    n_rank = 1000 // (data.n_ranks if data.sampler == "per-rank" else 1)
    return Feeding(
        wait_s=wait_s,
        copy_s=(own_s * copied(case),) * n_steps,
        idle_s=wait_s if case.device == "cuda" else None,
        first_wait_s=1.0,
        text_bytes=4000 * case.workload.seq_len,
        text_digest="0123456789abcdef",
        n_tokens=1000 * (case.workload.seq_len + 1),
        vocab_size=257,
        n_sequences=1000,
        n_rank_sequences=n_rank,
        n_shared_sequences=0 if data.sampler == "per-rank" else n_rank,
    )


def true_held_bytes(case: Case) -> int | None:
    """Of an operator: the probability matrix where it makes one, in bf16 in fp32 too, and the result."""
    if not isinstance(case, OperatorCase) or case.pass_ == "forward":
        return None
    item = 2 if case.precision == "bf16" else 4
    matrix = case.seq_len * (6 if item == 2 else 4) if case.attention == "naive" else 0
    rows = case.batch_size * case.n_heads * case.seq_len
    return rows * (matrix + item * case.head_dim)


def true_peak_bytes(case: Case) -> int:
    """State by parameter, and a MiB a token, less with SDPA and checkpointing; of an operator four
    times what it holds."""
    if isinstance(case, OperatorCase):
        return 4 * (true_held_bytes(case) or 1)
    if not isinstance(case, ModelCase):
        return 1
    configuration, work = case.configuration, case.workload
    state = STATE_BYTES[configuration.precision] if work.pass_ == "train_step" else 4
    per_token = 2**20 * KEPT[configuration.checkpointing]
    per_token *= 1.0 if configuration.attention == "naive" else 0.5
    tokens = work.batch_size * work.seq_len
    return int(state * n_parameters(case.model) + per_token * tokens)


SLOWNESS = {
    "three passes": 4.0,
    "online": 3.0,
    "call by call": 3.5,
    "python loops": 1000.0,
    "numpy": 2.0,
    "TT": 1.5,
    "strided columns": 2.0,
    "one transposed": 8.0,
    "one transposed (copied)": 2.0,
    "scores of permuted heads": 1.25,
    "packed": 0.5,
}
MOVED = {"three passes": 8, "online": 12, "call by call": 7}
"""Passes; two for all else."""


def piece_work(case: MicroCase) -> PieceWork:
    """Of fp32 inputs of as many elements as the product of the sizes, half of them written."""
    n_bytes = 4 * math.prod(case.sizes)
    counted = case.piece not in ("python loops", "numpy")
    changed = case.piece.partition(" of ")
    copies = changed[0] in ("reshape", "contiguous") and changed[2] == "transposed"
    refused = case.piece == "view of transposed"
    kind = "refused" if refused else "view" if case.subject == "view" and not copies else "new"
    return PieceWork(
        flops=2 * math.prod(case.sizes) ** (3 if case.subject == "matmul" else 1),
        input_bytes=n_bytes,
        least_bytes=2 * n_bytes,
        moved_bytes=MOVED.get(case.piece, 2) * n_bytes if counted else None,
        counted_by="operators" if counted else None,
        result=kind,
        allocated_bytes=n_bytes if kind == "new" else 0,
        difference=None if refused else 1e-7 * SLOWNESS.get(case.piece, 1.0),
    )


DRIFT = {
    "fp32": 1e-7,
    "tf32": 1e-4,
    "bf16-mixed": 1e-3,
    "fp16-mixed": 2e-4,
    "bf16": 2e-3,
    "fp8": 5e-2,
}
"""Distances from fp64."""


def numerics(case: NumericsCase) -> Numerics:
    """One parameter and one function, one rounding that loses a tenth, a drift by precision, a run of two
    steps."""
    if case.subject == "types":
        return Numerics(types=(TypeSeen(kind="parameter", where="weight", dtype="float32"),))
    if case.subject == "operators":
        return Numerics(
            types=(TypeSeen(kind="function", where="torch.mm", dtype=case.way, given="float32"),)
        )
    if case.subject == "rounding":
        lost = Rounding(
            format="fp16",
            of="gradients",
            scaling="none",
            n=10,
            error=1e-4,
            zeroed=0.1,
            beyond=0.0,
            least=1e-9,
            largest=1.0,
        )
        return Numerics(roundings=(lost,))
    if case.subject == "drift":
        drifts = (
            Drift(quantity=each, error=DRIFT[case.way], fp32_error=DRIFT["fp32"], bound=0.1)
            for each in ("logits", "loss", "gradients")
        )
        return Numerics(drifts=tuple(drifts))
    watching = Watching(
        snapshot_every=1, n_snapshots=2, snapshot_bytes=1, snapshots_s=0.1, run_s=1.0
    )
    seen = Hunt(
        name=case.way,
        environment=environment(case.device),
        outcome="finite",
        n_steps=2,
        last_loss=2.0,
        watching=watching,
    )
    return Numerics(hunt=seen, losses=(3.0, 2.0))


class FakeLab:
    """Stands for `Sweep`: answers each case by the formulas above, or as `overrule` says."""

    def __init__(
        self,
        env: Environment,
        overrule: Callable[[Case], Status | None] = lambda case: None,
        stop_after: int | None = None,
    ) -> None:
        self.environment = env
        self.asked: list[tuple[Case, Protocol]] = []
        self.studies: list[object] = []
        self.stored: list[Measurement] = []
        self.first_steps: list[Case] = []
        self.calibrations: list[Calibration] = []
        self.store = SimpleNamespace(
            add_study=self.studies.append,
            add_measurement=self.stored.append,
            profile=self._profile,
            memory=case_memory,
            calibration=lambda key: self.calibrations[-1] if self.calibrations else None,
            add_calibration=self.calibrations.append,
        )
        self.workers = SimpleNamespace(
            first_step=self._first_step,
            calibrate=lambda device_type: ceilings(self.environment),
            rates=rates_of,
        )
        self._overrule, self._stop_after = overrule, stop_after

    def measure(self, case: Case, protocol: Protocol) -> Measurement:
        if self._stop_after is not None and len(self.asked) >= self._stop_after:
            raise KeyboardInterrupt
        self.asked.append((case, protocol))
        return measurement(case, protocol, self.environment, self._status(case), len(self.asked))

    def _status(self, case: Case) -> Status:
        said = self._overrule(case)
        limit = case.memory_limit_bytes or self.environment.device_memory_bytes
        return said or ("oom" if true_peak_bytes(case) > limit else "ok")

    def _first_step(self, case: Case) -> FirstStep | None:
        self.first_steps.append(case)
        return FirstStep(profiled_s=2.0, module_load_s=1.5, n_page_faults=1234)

    def _profile(self, case: Case, n_steps: int, key: str) -> CaseProfile | None:
        return case_profile(case, n_steps, key)


def ceilings(env: Environment) -> Calibration:
    """A quick calibration."""
    return Calibration(
        environment=env,
        started_at="2026-11-21T00:00:00+00:00",
        wall_s=1.0,
        matmul=(),
        copy_bytes_per_s=1e12,
        copy_size_bytes=GIB,
    )


KIB, MIB = 2**10, 2**20
SETS: dict[str, tuple[tuple[int, str | None, int | None, float, float], ...]] = {
    "cpu": (
        (8 * KIB, "L1", 32 * KIB, 100e9, 1e-9),
        (128 * KIB, "L2", MIB, 50e9, 4e-9),
        (512 * KIB, "L2", MIB, 48e9, 5e-9),
        (2 * MIB, "L3", 32 * MIB, 40e9, 15e-9),
        (8 * MIB, "L3", 32 * MIB, 45e9, 60e-9),
        (32 * MIB, None, None, 25e9, 90e-9),
        (128 * MIB, "memory", None, 20e9, 100e-9),
    ),
    "cuda": (
        (4 * MIB, "L2", 50 * MIB, 12e12, 250e-9),
        (64 * MIB, None, None, 7e12, 500e-9),
        (GIB, "memory", None, 4.2e12, 700e-9),
    ),
}
"""Working set, level, its capacity, bytes read a second, seconds of a load."""


def rates_of(subject: Subject, device: str) -> Rates:
    """One subject of a full calibration, in round figures."""
    link = [
        LinkRate(memory=memory, direction=direction, size_bytes=size, bytes_per_s=rate)
        for memory, rates in (("pinned", (2e9, 50e9)), ("pageable", (1e9, 10e9)))
        for direction in ("to device", "to host")
        for size, rate in zip((4096, 256 * MIB), rates, strict=True)
    ]
    figures = {
        "traffic": [
            TrafficRate(operation=operation, size_bytes=size, bytes_per_s=rate)
            for operation in ("copy", "add")
            for size, rate in ((4 * KIB, 4e9), (2 * MIB, 30e9), (256 * MIB, 20e9))
        ],
        "levels": [
            LevelRate(level=level, working_set_bytes=size, capacity_bytes=holds, bytes_per_s=rate)
            for size, level, holds, rate, _ in SETS[device]
        ],
        "latency": [
            LoadLatency(level=level, working_set_bytes=size, load_s=load_s)
            for size, level, _, _, load_s in SETS[device]
        ],
        "link": link if device == "cuda" else [],
        "disk": [
            DiskRate(source=source, size_bytes=128 * MIB, block_bytes=block, bytes_per_s=rate)
            for source, block, rate in (
                ("disk", 8 * MIB, 2e9),
                ("disk", 4096, 40.96e6),
                ("page cache", 8 * MIB, 10e9),
            )
        ],
    }
    if not (own := figures.get(subject)):
        return Rates(absent=(Absence(subject=subject, reason="a reason"),))
    return msgspec.structs.replace(Rates(), **{subject: tuple(own)})


def full_calibration(device: str = "cuda", **changes: object) -> Calibration:
    """Of a GPU or a CPU, all subjects, with what is to be different in its rates."""
    rates = sum((rates_of(subject, device) for subject in SUBJECTS), Rates())
    env = environment(device)
    return msgspec.structs.replace(ceilings(env), rates=msgspec.structs.replace(rates, **changes))


SHARES_NS: dict[WorkPhase, dict[str, int]] = {
    "forward": {"matmul": 500, "softmax": 300, "elementwise": 200},
    "backward": {"matmul": 1400, "elementwise": 600},
    "optimizer": {"elementwise": 1000},
}
"""Kernel time of a step by phase and category, in nanoseconds."""
PROFILING = 1.25
PARTS_NS = {
    ("attention", "softmax"): 300,
    ("attention", "matmul"): 500,
    ("attention", "elementwise"): 200,
    ("attention.scores", "matmul"): 200,
    ("attention.scores", "elementwise"): 150,
    ("attention.softmax", "softmax"): 300,
    ("attention.values", "matmul"): 300,
    ("attention.values", "elementwise"): 30,
}
"""Time of a step of attention forward by range and category; backward it is twice that."""


def case_profile(case: Case, n_steps: int = 3, key: str = "here") -> CaseProfile:
    """A kernel for each category of each phase, two instances a step; and a copy by the driver."""
    training = isinstance(case, ModelCase) and case.workload.pass_ == "train_step"
    told = [
        (phase, category, total_ns * n_steps)
        for phase, categories in SHARES_NS.items()
        if training or phase == "forward"
        for category, total_ns in (*categories.items(), ("memory", 50))
    ]
    whole = sum(total_ns for _, _, total_ns in told)
    groups = [
        KernelGroup(
            name=category,
            category=category,
            phase=phase,
            n=2 * n_steps,
            total_ns=total_ns,
            share=total_ns / whole,
            mean_ns=total_ns / n_steps / 2,
            median_ns=total_ns / n_steps / 2,
            min_ns=1,
            max_ns=total_ns,
            std_ns=0.0,
        )
        for phase, category, total_ns in told
    ]
    kernels = [msgspec.structs.replace(each, name=f"{each.name}_kernel") for each in groups]
    together = DeviceTime(
        **dict.fromkeys(DeviceTime.__struct_fields__, 0)
        | {"device": None, "span_ns": 2 * whole, "busy_ns": whole}
    )
    return CaseProfile(
        id=f"p {msgspec.json.encode(case).decode()}",
        case=case,
        environment_key=key,
        n_steps=n_steps,
        profiled_step_s=true_step_s(case) * PROFILING,
        trace="0123456789abcdef.json.gz",
        profile=Profile(
            **dict.fromkeys(Profile.__struct_fields__, ())
            | dict.fromkeys(
                ("rank", "world_size", "selection", "idle", "path", "host", "accelerator")
            )
            | {"source": "trace", "format": "torch", "n_steps": n_steps, "unnamed_share": 0.0}
            | {"breakdown": Breakdown(devices=(together,), together=together, span_ns=2 * whole)}
            | {"categories": tuple(groups), "kernels": tuple(kernels)}
            | {"ranges": attention_ranges(n_steps) if isinstance(case, OperatorCase) else ()}
        ),
    )


TOKEN_BYTES = 2**20
"""What a block keeps a token, beside a byte for each pair of tokens."""


def case_memory(case: ModelCase, key: str = "here") -> CaseMemory:
    """Parameters of 4 bytes; in a train step as much again of each other kind at the optimiser's peak,
    and activations of two kinds before, one of them with the square of the sequence length."""
    work, n_bytes = case.workload, 4 * n_parameters(case.model)
    linear, square = work.seq_len * TOKEN_BYTES, work.seq_len**2
    blocks = range(case.model.n_layers)
    kept = (linear + square) * len(blocks)
    moments = {"forward": {"parameters": n_bytes, "temporaries": 512}}
    if work.trains:
        moments = {
            "forward": {"parameters": n_bytes, "activations": kept},
            "backward": {"parameters": n_bytes, "activations": kept, "temporaries": 512},
            "optimizer": {"parameters": n_bytes, "gradients": n_bytes},
        }
    purposes = ("parameters", "gradients", "weight_casts", "activations", "temporaries")
    line = "reference.py:30 softmax" if case.device == "cuda" else None
    clock = StepClock(
        trace="0123456789abcdef.json.gz",
        times_s=tuple(1e-3 * event for event in range(len(moments))),
        peaks=tuple(
            PeakMoment(
                phase=phase,
                at_s=1e-3 * event,
                operator="aten::mm",
                kernel="gemm" if event else None,
                category="matmul" if event else None,
                queued_s=2e-4 if event else None,
                host_ahead_s=5e-4 * event,
            )
            for event, phase in enumerate(moments)
        ),
        kernels=tuple(
            KernelPhase(phase=phase, begin_s=2e-3 * event, end_s=2e-3 * (event + 1))
            for event, phase in enumerate(moments)
        ),
    )
    return CaseMemory(
        clock=clock if case.device == "cuda" else None,
        id=f"h {msgspec.json.encode(case).decode()}",
        case=case,
        environment_key=key,
        snapshot="0123456789abcdef.pickle.gz",
        peak_bytes=max(sum(each.values()) for each in moments.values()),
        counted_peak_bytes=None,
        reserved_bytes=None,
        phases=tuple(
            PhasePeak(
                phase=phase,
                event=event,
                allocated_bytes=sum(held.values()),
                purposes=tuple(
                    MemoryShare(name=name, n=1, n_bytes=size) for name, size in held.items()
                ),
            )
            for event, (phase, held) in enumerate(moments.items())
        ),
        purposes=purposes,
        timeline=tuple(
            HeldPoint(event=event, n_bytes=tuple(held.get(name, 0) for name in purposes))
            for event, held in enumerate(moments.values())
        ),
        modules=tuple(
            ModuleActivations(module=f"blocks.{block}.{name}", n=1, n_bytes=size)
            for block in blocks
            for name, size in (("ff", linear), ("attention.softmax", square))
            if work.trains
        ),
        largest=(
            LargeAllocations(
                n_bytes=square,
                n=len(blocks),
                purpose="activations",
                made_in="forward",
                part="blocks.*.attention.softmax",
                source=line,
            ),
        ),
    )


def attention_ranges(n_steps: int) -> tuple[RangeWork, ...]:
    """`PARTS_NS` over so many steps."""
    return tuple(
        RangeWork(
            name=f"peakward::{name}",
            direction=direction,
            category=category,
            n=n_steps,
            total_ns=factor * step_ns * n_steps,
        )
        for (name, category), step_ns in PARTS_NS.items()
        for direction, factor in (("forward", 1), ("backward", 2))
    )


def measurement(
    case: Case,
    protocol: Protocol,
    env: Environment,
    status: Status = "ok",
    serial: int = 0,
    factor: float = 1.0,
) -> Measurement:
    """A record as the lab makes it; the first step of a process without warm-up takes 91 times."""
    bare = Measurement(
        id=f"m{serial}",
        case=case,
        protocol=protocol,
        environment=env,
        started_at="2026-11-21T00:00:00+00:00",
        wall_s=1.0,
        status=status,
        reason=None if status == "ok" else f"because {status}",
    )
    if status != "ok":
        return bare
    step_s = true_step_s(case) * factor
    cold = protocol.warmup_steps == 0
    n_steps = case.n_prompts if isinstance(case, SpeculationCase) else max(10, protocol.min_steps)
    steps = (step_s * (91 if cold else 1),) + (step_s,) * (n_steps - 1)
    n_warmup = 3 if protocol.warmup_steps is None else protocol.warmup_steps
    compiled = getattr(getattr(case, "configuration", case), "compile", "none") != "none"
    peak = true_peak_bytes(case)
    return msgspec.structs.replace(
        bare,
        runs=(Run(warmup_s=(step_s,) * n_warmup, steps_s=steps),),
        summary=Summary(
            median_s=Interval(estimate=step_s, low=step_s * 0.99, high=step_s * 1.01),
            mean_s=sum(steps) / len(steps),
            sd_s=step_s,
            min_s=step_s,
            n=len(steps),
        ),
        validity=Validity(verdict="stable"),
        memory=MemoryUse(
            peak_allocated_bytes=peak,
            peak_reserved_bytes=peak if env.device_type == "cuda" else None,
            held_for_backward_bytes=true_held_bytes(case),
        ),
        piece=piece_work(case) if isinstance(case, MicroCase) else None,
        collectives=links(case) if isinstance(case, CollectivesCase) else None,
        ranks=ranks_work(case) if isinstance(case, LayoutCase) else None,
        speculated=speculated(case, factor) if isinstance(case, SpeculationCase) else None,
        numerics=numerics(case) if isinstance(case, NumericsCase) else None,
        feeding=feeding(case, n_steps),
        compile=CompileReport(
            compile_s=COMPILE_S, n_graphs=2, n_graph_breaks=1, n_recompiles=0, reasons=("a print",)
        )
        if compiled
        else None,
    )


@pytest.fixture
def setting() -> Callable[..., Setting]:
    """Makes a setting for a GPU of 80 GiB, or for what is asked."""

    def make(scope: Scope | str = "corners", device: str = "cuda", memory: int = 80 * GIB):
        named = Scope(scope) if isinstance(scope, str) else scope
        return Setting(
            scope=named,
            environment=environment(device, memory),
            has_compiler=True,
            has_smollm2=True,
            n_gpus=8 if device == "cuda" else 0,
        )

    return make


@pytest.fixture
def lab() -> Callable[..., FakeLab]:
    """Makes a lab whose environment is that of the setting."""

    def make(setting: Setting, **options: object) -> FakeLab:
        return FakeLab(setting.environment, **options)  # type: ignore[arg-type]

    return make


@pytest.fixture
def measure() -> Callable[..., Measurement]:
    """`measurement`, for tests that need records without a lab."""
    return measurement


@pytest.fixture
def calibration() -> Callable[..., Calibration]:
    """`full_calibration`, for tests that need records without a lab."""
    return full_calibration


@pytest.fixture
def profile() -> Callable[..., CaseProfile]:
    """`case_profile`, for tests that need records without a lab."""
    return case_profile


@pytest.fixture
def gathered(lab) -> Callable[..., Readings]:
    """Runs a study's module in a fake lab; what it measured."""

    def run(module: object, setting: Setting, **options: object) -> Readings:
        recorder = Recorder(lab(setting, **options))
        module.gather(recorder, setting)  # type: ignore[attr-defined]
        return recorder.readings

    return run


@pytest.fixture
def figures() -> Callable[..., dict[str, float]]:
    """A conclusion's numbers by what they are."""
    return lambda said: {each.quantity: each.value for each in said.evidence}


@pytest.fixture
def rows() -> Callable[..., list[dict[str, object]]]:
    """A table's rows as cells by column name."""

    def read(table: Table) -> list[dict[str, object]]:
        names = [column.name for column in table.columns]
        return [dict(zip(names, row, strict=True)) for row in table.rows]

    return read


@pytest.fixture
def true_peak() -> Callable[[Case], int]:
    """What a case holds at its peak in the fake lab."""
    return true_peak_bytes
