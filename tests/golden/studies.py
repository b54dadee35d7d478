"""Two synthetic studies with the figures of a plausible H200 and a plausible laptop."""

import msgspec

from peakward.records.calibration import Calibration, MatmulRate
from peakward.records.case import Configuration, ModelCase, SpeculationCase, Workload
from peakward.records.finding import Abstention, Diagnosis, Finding, FindingEvidence, LeverGain
from peakward.records.lever import NumericsError, NumericsVerdict, Pair, Trial
from peakward.records.measurement import (
    CompileReport,
    Environment,
    Interval,
    Measurement,
    MemoryUse,
    PhaseTime,
    Protocol,
    Run,
    Speculated,
    Summary,
    Telemetry,
    Validity,
)
from peakward.records.memory import CaseMemory, KernelPhase, PeakMoment, PhasePeak, StepClock
from peakward.records.model_shape import ModelShape
from peakward.records.prediction import PhaseFloor, Prediction
from peakward.records.profile import (
    Breakdown,
    CaseProfile,
    DeviceIdle,
    DeviceTime,
    Idle,
    KernelGroup,
    Profile,
)
from peakward.records.study import (
    Conclusion,
    Evidence,
    Plot,
    Point,
    Series,
    Study,
)
from peakward.studies.bench import table
from peakward.studies.readings import Readings

GIB = 2**30
STARTED = "2026-11-21T09:30:00Z"

H200 = Environment(
    device_type="cuda",
    device_name="NVIDIA H200",
    device_memory_bytes=150_754_820_096,
    device_uuid="GPU-00000000-1111-2222-3333-444444444444",
    compute_capability="9.0",
    driver="580.65.06",
    cuda="13.0",
    n_cores=16,
    torch="2.11.0+cu130",
    triton="3.6.0",
    python="3.11.9",
    system="Linux 6.8.0",
    peakward="0.1.0",
)
LAPTOP = Environment(
    device_type="cpu",
    device_name="AMD Ryzen 7 7840U",
    device_memory_bytes=16 * GIB,
    n_cores=8,
    torch="2.13.0+cpu",
    python="3.11.9",
    system="Linux 6.8.0",
    peakward="0.1.0",
)
SHAPE = ModelShape(
    name="2.7B",
    vocab_size=10_000,
    n_layers=32,
    d_model=2560,
    d_ff=10_240,
    n_heads=32,
    n_kv_heads=32,
    head_dim=80,
    max_seq_len=65_536,
)
SMALL = msgspec.structs.replace(
    SHAPE, name="small", n_layers=12, d_model=768, d_ff=3072, n_heads=12, n_kv_heads=12, head_dim=64
)
BASELINE = ModelCase(model=SHAPE, workload=Workload(batch_size=4, seq_len=512), device="cuda")


def with_settings(case: ModelCase, **settings: str | bool) -> ModelCase:
    """The case with fields of its configuration replaced."""
    configuration: Configuration = msgspec.structs.replace(case.configuration, **settings)
    return msgspec.structs.replace(case, configuration=configuration)


BF16 = with_settings(BASELINE, precision="bf16")
BF16_COMPILE = with_settings(BF16, compile="default")
BF16_COMPILE_SDPA = with_settings(BF16_COMPILE, attention="sdpa")
BEST = with_settings(BF16_COMPILE_SDPA, optimizer="adamw-fused")
STEP_S = {
    BASELINE.configuration: 1.006,
    BF16.configuration: 0.1722,
    BF16_COMPILE.configuration: 0.1150,
    BF16_COMPILE_SDPA.configuration: 0.1025,
    BEST.configuration: 0.0977,
}
"""What a configuration takes as the base of a pair."""

CALIBRATION = Calibration(
    environment=H200,
    started_at=STARTED,
    wall_s=9.3,
    matmul=(
        MatmulRate(compute_type="fp32", size=8192, flops_per_s=50.9e12),
        MatmulRate(compute_type="tf32", size=8192, flops_per_s=361e12),
        MatmulRate(compute_type="bf16", size=8192, flops_per_s=785e12),
    ),
    copy_bytes_per_s=4.264e12,
    copy_size_bytes=4 * GIB,
)


def prediction(
    case: ModelCase, *, kind: str, rate: float, peak: float, bytes_per_parameter: int
) -> Prediction:
    """The floor of a training step of 3.4 billion parameters at those ceilings."""
    n, bandwidth, forward = 3.407e9, CALIBRATION.copy_bytes_per_s, 1.39e13
    phases = (
        _floor("forward", forward, n * bytes_per_parameter, rate, bandwidth),
        _floor("backward", 2 * forward, 2 * n * bytes_per_parameter, rate, bandwidth),
        _floor("optimizer", 0.0, 7 * n * bytes_per_parameter, rate, bandwidth),
    )
    return Prediction(
        case=case,
        device="NVIDIA H200",
        phases=phases,
        floor_s=sum(phase.floor_s or 0.0 for phase in phases),
        compute_type=kind,
        matmul_flops_per_s=rate,
        bytes_per_s=bandwidth,
        source="measured",
        peak_flops_per_s=peak,
    )


def _floor(phase, flops: float, n_bytes: float, rate: float, bandwidth: float) -> PhaseFloor:
    compute_s, memory_s = flops / rate, n_bytes / bandwidth
    return PhaseFloor(
        phase=phase,
        flops=flops,
        bytes=n_bytes,
        compute_s=compute_s,
        memory_s=memory_s,
        floor_s=max(compute_s, memory_s),
        bound="compute" if compute_s >= memory_s else "memory",
    )


def summary(median_s: float, *, spread: float = 0.002, n: int = 30) -> Summary:
    """Statistics of steps spread evenly about a median."""
    return Summary(
        median_s=Interval(
            estimate=median_s, low=median_s * (1 - spread), high=median_s * (1 + spread)
        ),
        mean_s=median_s * 1.001,
        sd_s=median_s * spread * 2,
        min_s=median_s * (1 - 2 * spread),
        n=n,
    )


TELEMETRY = Telemetry(
    sm_clock_mhz=Interval(estimate=1905, low=1740, high=1980, level=1),
    power_w=Interval(estimate=642, low=410, high=699, level=1),
    temperature_c=Interval(estimate=54, low=47, high=58, level=1),
    energy_per_step_j=62.6,
    n_samples=40,
)


def measurement(case: ModelCase, median_s: float, *, peak_gib: float, **changes) -> Measurement:
    """A measurement that went well, but for `changes`."""
    made = Measurement(
        id=f"m-{case.configuration.precision}-{case.configuration.compile}",
        case=case,
        protocol=Protocol(),
        environment=H200,
        started_at=STARTED,
        wall_s=21.0,
        status="ok",
        runs=(Run(warmup_s=(median_s * 9,), steps_s=(median_s,) * 30),) * 2,
        summary=summary(median_s),
        validity=Validity(verdict="stable"),
        memory=MemoryUse(
            peak_allocated_bytes=round(peak_gib * GIB),
            peak_reserved_bytes=round((peak_gib + 1) * GIB),
            context_bytes=GIB // 2,
        ),
        telemetry=msgspec.structs.replace(TELEMETRY, energy_per_step_j=642 * median_s),
        n_parameters=3_407_137_280,
        loss=9.21,
    )
    return msgspec.structs.replace(made, **changes)


def guesses(factor: float) -> Measurement:
    """Texts that take that much longer without guesses."""
    steps_s = tuple(0.1 + 0.01 * n for n in range(12))
    case = SpeculationCase(
        model="smollm2", draft="ngrams", guesses=4, n_prompts=12, n_new_tokens=64, device="cuda"
    )
    found = Speculated(
        plain_s=tuple(factor * each for each in steps_s),
        accepted=(300, 100, 50, 20, 10),
        n_rounds=480,
        n_equal=12,
        step_s=1e-3,
        check_s=1.2e-3,
        draft_s=0.0,
        draft_parameters=0,
    )
    timed = measurement(BASELINE, 0.1, peak_gib=1.0)
    run = msgspec.structs.replace(timed.runs[0], steps_s=steps_s)
    return msgspec.structs.replace(timed, id="guesses", case=case, runs=(run,), speculated=found)


def phases(forward_s: float, backward_s: float, optimizer_s: float) -> tuple[PhaseTime, ...]:
    """Phases, each timed ten times."""
    return (
        PhaseTime(phase="forward", median_s=forward_s, n=10),
        PhaseTime(phase="backward", median_s=backward_s, n=10),
        PhaseTime(phase="optimizer", median_s=optimizer_s, n=10),
    )


def numerics(declared, error: float, bound: float, *, verdict="holds", reason=None):
    """A verdict on logits and gradients, the logits being nearer to the bound."""
    return NumericsVerdict(
        declared=declared,
        verdict=verdict,
        reason=reason,
        errors=(
            NumericsError(
                quantity="gradients", candidate_error=error / 3, base_error=4.1e-7, bound=bound
            ),
            NumericsError(quantity="logits", candidate_error=error, base_error=3.2e-7, bound=bound),
        ),
    )


def trial(
    lever: str, base: ModelCase, candidate: ModelCase, stage, verdict, ratio, reason, **changes
) -> Trial:
    """A trial whose pairs agree with `ratio` (estimate, low, high), or that never ran."""
    interval = Interval(estimate=ratio[0], low=ratio[1], high=ratio[2]) if ratio else None
    base_s = STEP_S[base.configuration]
    pairs = (
        tuple(Pair(process=i % 2, base_s=base_s, candidate_s=base_s * ratio[0]) for i in range(5))
        if ratio
        else ()
    )
    made = Trial(
        id=f"t-{lever}-{stage}",
        lever=lever,
        base=base,
        candidate=candidate,
        environment_key=H200.key,
        stage=stage,
        verdict=verdict,
        reason=reason,
        pairs=pairs,
        time_ratio=interval,
        base_peak_bytes=58 * GIB if ratio else None,
        candidate_peak_bytes=41 * GIB if ratio else None,
    )
    return msgspec.structs.replace(made, **changes)


BF16_ERROR = numerics("approximate", 0.0061, 0.02)
REORDERED = numerics("reordered", 3.9e-7, 6.4e-7)


SEEN = "faster when screened; not confirmed"
NO_GAIN = "a gain of 1% is outside the interval"
PROVED = "faster in the interval (5 pairs, 2 processes)"


def trials() -> tuple[Trial, ...]:
    """Screenings on the baseline, refusals, a failure, then a composition of four levers."""
    b = BASELINE
    return (
        trial("tf32", b, with_settings(b, precision="tf32"), "screened", "inconclusive",
              (0.2931, 0.2902, 0.2961), SEEN),
        trial("sdpa", b, with_settings(b, attention="sdpa"), "screened", "inconclusive",
              (0.9412, 0.9371, 0.9453), SEEN),
        trial("sdpa-cudnn", b, with_settings(b, attention="sdpa-cudnn"), "refused", "rejected",
              None, "needs the precision bf16-mixed or fp16-mixed or bf16 or fp8, got fp32"),
        trial("compile", b, with_settings(b, compile="default"), "screened", "inconclusive",
              (0.9203, 0.9160, 0.9246), SEEN),
        trial("cuda-graphs", b, with_settings(b, cuda_graphs=True), "screened", "rejected",
              (0.9984, 0.9961, 1.0008), NO_GAIN),
        trial("checkpointing", b, with_settings(b, checkpointing="every-block"), "screened",
              "rejected", (1.3120, 1.3077, 1.3163), NO_GAIN, candidate_peak_bytes=33 * GIB),
        trial("bf16", b, BF16, "confirmed", "kept", (0.1712, 0.1704, 0.1720), PROVED,
              numerics=BF16_ERROR, candidate_peak_bytes=29 * GIB),
        trial("compile", BF16, BF16_COMPILE, "confirmed", "kept", (0.6680, 0.6651, 0.6709), PROVED,
              numerics=REORDERED, base_peak_bytes=29 * GIB, candidate_peak_bytes=27 * GIB),
        trial("sdpa", BF16_COMPILE, BF16_COMPILE_SDPA, "confirmed", "kept",
              (0.8910, 0.8871, 0.8949), PROVED,
              numerics=REORDERED, base_peak_bytes=27 * GIB, candidate_peak_bytes=26 * GIB),
        trial("fused-optimizer", BF16_COMPILE_SDPA, BEST, "confirmed", "kept",
              (0.9530, 0.9500, 0.9560), PROVED,
              numerics=REORDERED, base_peak_bytes=26 * GIB, candidate_peak_bytes=26 * GIB),
        trial("cuda-graphs", BEST, with_settings(BEST, cuda_graphs=True), "screened", "rejected",
              None, "CUDA out of memory while the graph's pool was reserved", status="oom",
              base_peak_bytes=26 * GIB),
        trial("composition", b, BEST, "confirmed", "kept", (0.0971, 0.0968, 0.0974), PROVED,
              candidate_peak_bytes=26 * GIB),
    )  # fmt: skip


N_PROFILED = 3
MS = 1_000_000


def group(phase, category: str, name: str, n: int, total_ms: float, whole_ms: float) -> KernelGroup:
    """Kernels of equal length."""
    each_ns = round(total_ms * MS / n)
    return KernelGroup(
        name=name,
        category=category,
        phase=phase,
        n=n,
        total_ns=round(total_ms * MS),
        share=total_ms / whole_ms,
        mean_ns=each_ns,
        median_ns=each_ns,
        min_ns=each_ns,
        max_ns=each_ns,
        std_ns=0.0,
    )


def profile(case: ModelCase, span_ms: float, work, causes) -> CaseProfile:
    """Three steps: work as (phase, category, kernel, n, ms), and the idle milliseconds by cause."""
    whole_ms = sum(each[-1] for each in work)
    busy_ns, span_ns = round(whole_ms * MS), round(span_ms * MS)
    together = DeviceTime(
        **dict.fromkeys(DeviceTime.__struct_fields__, 0)
        | {"device": None, "span_ns": span_ns, "busy_ns": busy_ns, "compute_ns": busy_ns}
    )
    idle = DeviceIdle(
        device=None,
        n_gaps=9,
        idle_ns=span_ns - busy_ns,
        by_cause_ns={cause: round(ms * MS) for cause, ms in causes.items()},
        longest_ns=MS,
    )
    kernels = sorted((group(*each, whole_ms) for each in work), key=lambda each: -each.total_ns)
    categories = [group(each[0], each[1], each[1], *each[3:], whole_ms) for each in work]
    return CaseProfile(
        id=f"p-{case.configuration.precision}",
        case=case,
        environment_key=H200.key,
        n_steps=N_PROFILED,
        profiled_step_s=span_ms / N_PROFILED / 1000,
        trace="0123456789abcdef.json.gz",
        profile=Profile(
            **dict.fromkeys(Profile.__struct_fields__, ())
            | dict.fromkeys(("rank", "world_size", "selection", "path", "host", "accelerator"))
            | {"source": "0123456789abcdef.json.gz", "format": "torch"}
            | {"n_steps": N_PROFILED, "unnamed_share": 0.0}
            | {"breakdown": Breakdown(devices=(together,), together=together, span_ns=span_ns)}
            | {"idle": Idle(devices=(idle,), together=idle)}
            | {"categories": tuple(categories), "kernels": tuple(kernels)}
        ),
    )


def profiles() -> tuple[CaseProfile, ...]:
    """fp32 matmuls before; after, less of everything and more of the host."""
    return (
        profile(
            BASELINE,
            3080,
            (
                ("forward", "matmul", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n", 675, 801.0),
                ("forward", "elementwise", "vectorized_elementwise_kernel<MulFunctor>", 900, 95.0),
                ("forward", "softmax", "cunn_SoftMaxForward", 96, 62.0),
                ("backward", "matmul", "sm80_xmma_gemm_f32f32_f32f32_f32_nt_n", 1350, 1630.0),
                ("backward", "elementwise", "vectorized_elementwise_kernel<CopyFunctor>", 1500, 180.0),
                ("backward", "softmax", "cunn_SoftMaxBackward", 96, 71.0),
                ("optimizer", "elementwise", "multi_tensor_apply_kernel", 40, 130.0),
                ("optimizer", "memory", "Memset (Device)", 9, 0.2),
            ),
            {"queued": 61.0, "launch_latency": 30.8, "host_bound": 19.0, "profiler": 0.0},
        ),
        profile(
            BEST,
            330,
            (
                ("forward", "matmul", "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", 675, 60.1),
                ("forward", "attention", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop", 96, 11.0),
                ("forward", "elementwise", "triton_poi_fused_mul_silu_0", 96, 7.5),
                ("backward", "matmul", "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NNT", 1350, 121.0),
                ("backward", "attention", "cudnn_generated_fort_native_sdpa_sm90_flash_bprop", 96, 24.0),
                ("optimizer", "optimizer", "multi_tensor_apply_kernel<FusedAdamMathFunctor>", 24, 49.0),
            ),
            {"queued": 22.4, "launch_latency": 5.0, "host_bound": 28.0, "graph_start": 2.0},
        ),
    )  # fmt: skip


def recorded() -> CaseMemory:
    """Of the baseline: its peaks on the clock of its kernels."""
    scores = "vectorized_elementwise_kernel<CUDAFunctor_mul>"
    peaks = (
        ("forward", 51.7, 0.0412, "aten::_softmax", scores, "elementwise", 0.0198, 0.291),
        ("backward", 58.9, 0.3731, "aten::mm", "ampere_sgemm_128x64_nn", "matmul", 0.1702, 0.1846),
        ("optimizer", 50.8, 1.0109, "aten::_foreach_sqrt", None, None, None, 0.0),
    )  # fmt: skip
    return CaseMemory(
        id="20261121-092000-memory-7b10",
        case=BASELINE,
        environment_key=H200.key,
        snapshot="2f9d41c07be1.pickle.gz",
        peak_bytes=int(58.9 * GIB),
        counted_peak_bytes=int(58.9 * GIB),
        reserved_bytes=int(61.2 * GIB),
        phases=tuple(
            PhasePeak(phase=phase, event=0, allocated_bytes=int(peak * GIB), purposes=())
            for phase, peak, *_ in peaks
        ),
        purposes=(),
        timeline=(),
        modules=(),
        largest=(),
        clock=StepClock(
            trace="c0a8117e55d2.json.gz",
            times_s=(),
            peaks=tuple(
                PeakMoment(
                    phase=phase,
                    at_s=at_s,
                    operator=operator,
                    kernel=kernel,
                    category=category,
                    queued_s=queued_s,
                    host_ahead_s=ahead_s,
                )
                for phase, _, at_s, operator, kernel, category, queued_s, ahead_s in peaks
            ),
            kernels=(
                KernelPhase(phase="forward", begin_s=0.0003, end_s=0.3322),
                KernelPhase(phase="backward", begin_s=0.3323, end_s=0.9618),
                KernelPhase(phase="optimizer", begin_s=0.962, end_s=1.0057),
            ),
        ),
    )


def diagnosis() -> Diagnosis:
    """Of the baseline: two findings, one with a gain cut at its bound, and what could not be judged."""
    guess = Interval(estimate=5.6, low=5.1, high=6.2, level=0.9)
    source = "prediction for NVIDIA H200, rates: calibrated"
    cores = Finding(
        code="PREC001",
        title="Matrix products run on ordinary cores",
        cause="Operands in fp32 are multiplied in fp32, which no tensor core does.",
        evidence=(
            FindingEvidence(
                name="sm80_xmma_gemm_f32f32_f32f32_f32_nt_n, backward, a step",
                value=0.543,
                unit="s",
                stored="profile kernels[0].total_ns",
            ),
        ),
        advice='torch.set_float32_matmul_precision("high") for tf32, or autocast to bf16',
        gains=(
            LeverGain(
                lever="bf16",
                predicted=guess,
                gain=msgspec.structs.replace(guess, high=5.7),
                saved_bytes=29 * GIB,
                source=source,
            ),
            LeverGain(
                lever="tf32",
                predicted=Interval(estimate=3.2, low=3.0, high=3.4, level=0.9),
                gain=Interval(estimate=3.2, low=3.0, high=3.4, level=0.9),
                saved_bytes=0,
                source=source,
            ),
        ),
        held_back_s=0.828,
        beyond_s=0.828,
        share=0.825,
        bound=5.7,
    )
    memory = Finding(
        code="MEM004",
        title="The allocator holds much more memory than is used",
        cause="Free blocks of the allocator do not fit what is asked for next.",
        evidence=(),
        advice="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or fewer different shapes",
        share=0.2,
        held_back_bytes=28 * GIB,
    )
    return Diagnosis(
        subject="2.7B 4 × 512 train_step",
        case=BASELINE,
        whole_s=1.004,
        basis="measured step",
        findings=(cores, memory),
        abstentions=(
            Abstention(code="HOST006", missing=("Python stacks in the profile",)),
            Abstention(code="PREC002", missing=("operators' shapes on a catalogued device",)),
        ),
        clean=("HOST001", "HOST002"),
    )


def run_study() -> Study:
    """`peakward run --model 2.7B` on an H200, complete."""
    return Study(
        id="20261121-093000-run-5f2c",
        name="run",
        title="2.7B train_step",
        command="peakward run --model 2.7B --batch-size 4 --seq-len 512 --pass train_step",
        environment=H200,
        started_at=STARTED,
        wall_s=412.0,
        complete=True,
        measurements=(
            measurement(BASELINE, 1.004, peak_gib=58.9, phases=phases(0.331, 0.629, 0.0431)),
            measurement(
                BEST,
                0.0975,
                peak_gib=25.7,
                phases=phases(0.0262, 0.0541, 0.0168),
                validity=Validity(
                    verdict="throttled",
                    reasons=("SM clock 1,740 MHz at its lowest, 1,980 at its highest",),
                ),
                telemetry=msgspec.structs.replace(TELEMETRY, throttle_reasons=("sw_power_cap",)),
                compile=CompileReport(
                    compile_s=38.4,
                    n_graphs=3,
                    n_graph_breaks=1,
                    n_recompiles=0,
                    reasons=("graph break: loss.item() in the step",),
                ),
            ),
        ),
        calibration=CALIBRATION,
        predictions=(
            prediction(BASELINE, kind="fp32", rate=50.9e12, peak=67e12, bytes_per_parameter=4),
            prediction(BEST, kind="bf16", rate=785e12, peak=989e12, bytes_per_parameter=2),
        ),
        trials=trials(),
        profiles=profiles(),
        memory=(recorded(),),
        diagnoses=(diagnosis(),),
        best_command=(
            "peakward bench --model 2.7B --batch-size 4 --seq-len 512 --pass train_step "
            "--precision bf16 --attention sdpa --compile default --optimizer adamw-fused --device cuda"
        ),
        notes=("Not done within the budget of 900 s: screening fp8.",),
    )


def bench_study() -> Study:
    """`peakward bench` of two sizes on a laptop: an OOM, a failure and a curve."""
    command = "peakward bench --model small,2.7B --seq-len 128,256,512 --pass forward"
    cases = [
        ModelCase(
            model=shape,
            workload=Workload(batch_size=4, seq_len=seq_len, pass_="forward"),
            device="cpu",
        )
        for shape in (SMALL, SHAPE)
        for seq_len in (128, 256, 512)
    ]
    times = (0.0841, 0.1795, 0.4102, 2.41, 5.03, None)
    measurements = tuple(
        measurement(case, time_s, peak_gib=0.6 + index, environment=LAPTOP, telemetry=None)
        if time_s is not None
        else Measurement(
            id="m-oom",
            case=case,
            protocol=Protocol(),
            environment=LAPTOP,
            started_at=STARTED,
            wall_s=8.0,
            status="oom",
            reason="the process needed more than the limit of 12.0 GiB",
        )
        for index, (case, time_s) in enumerate(zip(cases, times, strict=True))
    )
    return Study(
        id="20261121-093000-bench-91aa",
        name="bench",
        title="Bench: 2 models × 3 sequence lengths",
        command=command,
        environment=LAPTOP,
        started_at=STARTED,
        wall_s=61.0,
        complete=False,
        measurements=measurements,
        tables=(table([(case, Protocol()) for case in cases], Readings(measurements)),),
        plots=(_curve(measurements), _bars(measurements)),
        conclusions=(
            Conclusion(
                text="small runs 28.7× faster than 2.7B at sequence length 128.",
                evidence=(
                    Evidence(
                        quantity="2.7B over small, time",
                        value=2.41 / 0.0841,
                        unit="ratio",
                        from_ids=("m-1", "m-4"),
                    ),
                ),
            ),
        ),
        notes=("Sequence lengths of 1024 and more were left out on a CPU: --full runs them.",),
    )


def _curve(measurements: tuple[Measurement, ...]) -> Plot:
    def points(name: str) -> tuple[Point, ...]:
        return tuple(
            Point(
                x=each.case.workload.seq_len,
                y=each.summary.median_s.estimate,
                low=each.summary.median_s.low,
                high=each.summary.median_s.high,
            )
            for each in measurements
            if each.summary is not None and each.case.model.name == name
        )

    return Plot(
        title="Step time by sequence length",
        kind="lines",
        x_label="sequence length",
        y_label="step time",
        x_unit="count",
        y_unit="s",
        log_x=True,
        log_y=True,
        series=tuple(Series(name=name, points=points(name)) for name in ("small", "2.7B")),
    )


def _bars(measurements: tuple[Measurement, ...]) -> Plot:
    def points(name: str) -> tuple[Point, ...]:
        return tuple(
            Point(
                x=each.case.workload.seq_len,
                y=each.case.workload.tokens_per_step / each.summary.median_s.estimate,
                label=f"seq {each.case.workload.seq_len}",
            )
            for each in measurements
            if each.summary is not None and each.case.model.name == name
        )

    return Plot(
        title="Throughput",
        kind="bars",
        x_label="sequence length",
        y_label="tokens/s",
        x_unit="text",
        y_unit="tokens_per_s",
        series=tuple(Series(name=name, points=points(name)) for name in ("small", "2.7B")),
    )
