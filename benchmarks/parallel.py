"""Several GPUs of one machine: collectives, layouts of a training step, planted losses.

    python benchmarks/parallel.py --gpus 4 --part calibrate,ddp --out results/parallel-4.json

Writes the JSON after each item and goes on where the file was begun: what is in it without a failure is not
run again. No item is begun that would not end within --budget-s. Needs as many GPUs as --gpus says, or
--device cpu, over gloo at tiny sizes. NVLink's multicast is off (NCCL_NVLS_ENABLE=0) unless that is set.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import msgspec

import peakward as pw
from peakward.api import traces
from peakward.api.cases import case_of_source
from peakward.hardware import devices
from peakward.lab.measure import probe
from peakward.lab.parallel.launch import RankError, launch
from peakward.lab.parallel.measured import calibrate
from peakward.models.presets import model
from peakward.prediction.parallel.layouts import layout_forecast
from peakward.prediction.planning.site import site
from peakward.records.case import Configuration, ModelCase, ModuleCase, Precision, Workload
from peakward.records.errors import PeakwardError
from peakward.records.layout import Layout
from peakward.records.parallel import Arm, ArmRun, ArmsRequest
from several.found import Foreseen, Item, Report, Solo, compared_of, lines, solos_of, write

HERE = Path(__file__).parent
PATIENCE_S = 120.0
"""Without any rank's getting on: a cold compilation of a block takes 40 s."""
LOST_PATIENCE_S = 5.0
STATED_S = {"killed": 8.0, "nan": 8.0, "hung": LOST_PATIENCE_S + 8, "diverged": LOST_PATIENCE_S + 8}
"""From a loss until the job has ended: its cause is chosen after 1.5 s, places are asked for in 2 s."""
SET = {"TORCHINDUCTOR_COMPILE_THREADS": "8", "NCCL_NVLS_ENABLE": "0"}
"""What every job has unless it is set. Inductor would start a pool of 32 processes for each rank."""


class Options(NamedTuple):
    """What was asked."""

    gpus: int
    part: tuple[str, ...]
    out: Path
    device: str
    budget_s: float
    sizes: tuple[str, ...]
    batch_size: int
    seq_len: int
    rounds: int
    steps: int
    ctas: tuple[int, ...]


class Planned(NamedTuple):
    """An item, the seconds that it may take, and its work."""

    name: str
    limit_s: float
    run: Callable[[float], Item]


def main() -> None:
    """Run what fits, write, print."""
    options = parse()
    for name, value in SET.items():
        os.environ.setdefault(name, value)
    here = probe.environment("cuda" if options.device == "cuda" else "cpu")
    report = Report(
        environment=here,
        n_gpus=options.gpus,
        arguments=tuple(sys.argv[1:]),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if options.out.exists():
        report = msgspec.json.decode(options.out.read_bytes(), type=Report)
        report = msgspec.structs.replace(report, arguments=(*report.arguments, *sys.argv[1:]))
    done = {each.name for each in report.items if each.failed is None}
    began_s = monotonic()
    for planned in items(options):
        left_s = options.budget_s - (monotonic() - began_s)
        if planned.name in done:
            continue
        if left_s < 0.8 * planned.limit_s:
            print(f"== {planned.name}: not begun, {left_s:.0f} s are left", flush=True)
            continue
        item = carried_out(planned, min(left_s, 2 * planned.limit_s))
        report = report.extended(item)
        write(report, options.out)
        print("\n".join(lines(item)), flush=True)


def parse() -> Options:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words = lambda text: tuple(text.split(","))  # noqa: E731
    numbers = lambda text: tuple(int(each) for each in text.split(","))  # noqa: E731
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--part", type=words, default=tuple(PARTS)[:-1], help=",".join(PARTS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--budget-s", type=float, default=510.0)
    parser.add_argument("--sizes", type=words, default=("xl", "2.7B"))
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--ctas", type=numbers, default=(4, 8, 16), help="NCCL_MAX_CTAS tried")
    return Options(**vars(parser.parse_args()))


def items(options: Options) -> Iterator[Planned]:
    """In the order of --part."""
    for part in options.part:
        if part not in PARTS:
            raise SystemExit(f"error: expected parts of {', '.join(PARTS)}, got {part!r}")
        yield from PARTS[part](options)


def carried_out(planned: Planned, limit_s: float) -> Item:
    """The item, whatever comes of it."""
    began_s = monotonic()
    try:
        item = planned.run(limit_s)
    except (PeakwardError, RuntimeError, OSError) as error:
        item = Item(name=planned.name, failed=str(error))
    return msgspec.structs.replace(item, name=planned.name, wall_s=monotonic() - began_s)


# The parts.


def _calibrate(options: Options) -> Iterator[Planned]:
    sizes = (1, 3, 10, 30, 100, 300, 1000) if options.device == "cuda" else (0.1, 1, 3)
    counts = sorted({2, options.gpus})
    for n in counts:

        def run(limit_s: float, n: int = n) -> Item:
            found = calibrate(n, _kind(options), sizes_mb=sizes, timeout_s=limit_s)
            return Item(name="", links=found)

        yield Planned(f"calibrate {n}", 60, run)


def _ddp(options: Options) -> Iterator[Planned]:
    n = options.gpus
    base = (
        _arm("plain", Layout()),
        _arm("ddp", Layout(dp=n)),
        _arm("overlapped", Layout(dp=n, data="overlapped")),
        _arm("plain on each", Layout(), is_on_every_rank=True),
    )
    graphs: tuple[Arm, ...] = ()
    if options.device == "cuda":
        graphs = tuple(
            _arm(f"{data}, one graph", Layout(dp=n, data=data, captured=True))
            for data in ("overlapped", "zero2")
        )
    naive = (
        _arm("flat", Layout(dp=n, data="flat")),
        _arm("per-parameter", Layout(dp=n, data="per-parameter")),
        _arm("ddp 25 MB", Layout(dp=n, bucket_mb=25)),
        _arm("zero1", Layout(dp=n, data="zero1")),
    )
    for size in options.sizes:
        is_first = size == options.sizes[0]
        turns: tuple[tuple[str, ...], ...] = (("plain", "ddp", "overlapped"),)
        if size == "2.7B":  # 25 GiB of parameters, gradients and moments in bf16, each.
            turns = (("plain", "ddp"), ("plain", "overlapped"))
        turns += tuple(("plain", each.name) for each in graphs)
        if is_first:
            turns += (("ddp", "flat", "per-parameter"),)
        arms = base + graphs + (naive if is_first else ())
        yield _planned(options, f"ddp {size}", size, "bf16", arms=arms, turns=turns, limit_s=110)


def _ctas(options: Options) -> Iterator[Planned]:
    """NCCL's kernels take a multiprocessor for each of their blocks: fewer of them are slower alone, and
    leave more to the step that they hide behind."""
    arms = (
        _arm("plain", Layout()),
        _arm("overlapped", Layout(dp=options.gpus, data="overlapped")),
        _arm("ddp", Layout(dp=options.gpus)),
    )
    turns = (("plain", "overlapped", "ddp"),)
    size = options.sizes[0]
    for n in options.ctas:
        yield _planned(
            options,
            f"ctas {n} {size}",
            size,
            "bf16",
            arms=arms,
            turns=turns,
            limit_s=45,
            NCCL_MAX_CTAS=str(n),
        )


def _fsdp(options: Options) -> Iterator[Planned]:
    n = options.gpus
    base = (
        _arm("plain", Layout()),
        _arm("fsdp", Layout(dp=n, data="fsdp")),
        _arm("fsdp on one", Layout(data="fsdp")),
    )
    if options.device == "cuda":
        base += (_arm("fsdp, one graph", Layout(dp=n, data="fsdp", captured=True)),)
    more = (
        _arm("zero2", Layout(dp=n, data="zero2")),
        _arm("zero2, one graph", Layout(dp=n, data="zero2", captured=True)),
        _arm("fsdp, fp32 sums", Layout(dp=n, data="fsdp"), reduces_in_fp32=True),
        _arm("fsdp, 2 at once", Layout(dp=n, data="fsdp", blocks_together=2)),
        _arm("fsdp, 4 at once", Layout(dp=n, data="fsdp", blocks_together=4)),
        _arm("fsdp whole", Layout(dp=n, data="fsdp", wrap="whole")),
    )
    for size in options.sizes:
        # 2.7B holds 51 GiB of parameters, gradients and moments in fp32 on one GPU: one arm at a time.
        all_resident = size != "2.7B"
        turns: tuple[tuple[str, ...], ...] = (("plain", "fsdp"),)
        if options.device == "cuda":
            turns += (("plain", "fsdp, one graph"),)
        if not all_resident:
            turns = (tuple(each.name for each in base),)
        yield _planned(
            options,
            f"fsdp {size}",
            size,
            "bf16-mixed",
            arms=base + (more if size == options.sizes[0] else ()),
            turns=turns,
            limit_s=120,
            all_resident=all_resident,
        )


def _transformers(options: Options) -> Iterator[Planned]:
    """LlamaForCausalLM of the last size's shape, sharded and compiled block by block as ours is."""
    n, size = options.gpus, options.sizes[-1]
    arms = (
        _arm("plain", Layout()),
        _arm("fsdp", Layout(dp=n, data="fsdp")),
        _arm("fsdp on one", Layout(data="fsdp")),
    )
    names = tuple(each.name for each in arms)
    yield _planned(
        options,
        f"transformers {size}",
        size,
        "bf16-mixed",
        arms=arms,
        turns=(names,),
        limit_s=120,
        all_resident=False,
        is_of_transformers=True,
    )


def _buckets(options: Options) -> Iterator[Planned]:
    n, size = options.gpus, options.sizes[0]
    arms = [
        _arm(f"{name} {mb} MB", Layout(dp=n, data=name, bucket_mb=mb))
        for name in ("ddp", "overlapped")
        for mb in (0, 1, 10, 100, 1000)
    ]
    arms.append(_arm("ddp, unused looked for", Layout(dp=n, find_unused=True)))
    yield _planned(options, f"buckets {size}", size, "bf16", arms=tuple(arms), limit_s=130)


def _split(options: Options) -> Iterator[Planned]:
    """Tensor and pipeline parallelism of the last size: 25 heads of `xl` are no multiple of two ranks."""
    n, size = options.gpus, options.sizes[-1]
    arms = [
        _arm("tp", Layout(tp=n)),
        _arm("1f1b", Layout(pp=n, n_micro_batches=2 * n)),
        _arm("tp, not compiled", Layout(tp=n), compiled=False),
        _arm("gpipe", Layout(pp=n, n_micro_batches=2 * n, schedule="gpipe")),
        _arm(
            "interleaved",
            Layout(pp=n, n_micro_batches=2 * n, schedule="interleaved", stages_per_rank=2),
        ),
    ]
    if n == 4:
        arms.append(_arm("fsdp x tp", Layout(dp=2, data="fsdp", tp=2)))
        arms.append(_arm("fsdp x pp", Layout(dp=2, data="fsdp", pp=2, n_micro_batches=4)))
    for arm in arms:
        # One job each: a failure in the middle of a pipeline leaves its ranks in different calls.
        yield _planned(options, f"{arm.name} {size}", size, "bf16", arms=(arm,), limit_s=60)


def _lost(options: Options) -> Iterator[Planned]:
    """Each a job of its own, whose last rank is lost."""
    for how, stated_s in STATED_S.items():

        def run(limit_s: float, how: str = how, stated_s: float = stated_s) -> Item:
            with tempfile.TemporaryDirectory(prefix="peakward-") as folder:
                told: dict[str, Any] = {"cause": "the job ended well"}
                try:
                    _launched(
                        "several.lost:lose",
                        {"how": how, "folder": folder},
                        options,
                        limit_s=limit_s,
                        patience_s=LOST_PATIENCE_S,
                    )
                except RankError as error:
                    told = {"rank": error.rank, "cause": str(error)}
                ended_s = monotonic()
                at_s = float(Path(folder, "lost-at").read_text())
                pids = [int(each.read_text()) for each in Path(folder).glob("pid-*")]
            told |= {
                "seconds_after_the_loss": ended_s - at_s,
                "stated_seconds": stated_s,
                "processes_left": [each for each in pids if Path(f"/proc/{each}").exists()],
            }
            return Item(name="", lost={how: told})

        yield Planned(f"lost, {how}", 25, run)


def _traces(options: Options) -> Iterator[Planned]:
    """COMM001 planted (gradients reduced after the backward pass) and not; a rank that is late."""
    n, size = options.gpus, options.sizes[0]
    arms = (
        _arm("per-parameter", Layout(dp=n, data="per-parameter")),
        _arm("overlapped", Layout(dp=n, data="overlapped")),
        _arm("late", Layout(dp=n), delayed_rank=n - 1, delay_s=0.03),
    )

    def run(limit_s: float) -> Item:
        with tempfile.TemporaryDirectory(prefix="peakward-") as folder:
            case = _case(options, size, "bf16")
            request = ArmsRequest(
                case=case, arms=arms, n_warmup=4, n_solo_steps=4, accounts=True, trace_folder=folder
            )
            by_rank = _asked(request, options, limit_s)
            return Item(name="", solos=solos_of(by_rank), findings=_findings(Path(folder), arms, n))

    yield Planned(f"traces {size}", 80, run)


def _host(options: Options) -> Iterator[Planned]:
    """What the host does for `fully_shard` on a single rank: traces are kept beside the report."""
    size = options.sizes[0]
    arms = (
        _arm("plain", Layout()),
        _arm("fsdp on one", Layout(data="fsdp")),
        _arm("fsdp on one, 4 at once", Layout(data="fsdp", blocks_together=4)),
        _arm("fsdp on one, whole", Layout(data="fsdp", wrap="whole")),
    )

    def run(limit_s: float) -> Item:
        case, folder = _case(options, size, "bf16-mixed"), options.out.parent
        request = ArmsRequest(
            case=case, arms=arms, n_warmup=4, n_traced=2, trace_folder=str(folder.absolute())
        )
        return Item(name="", solos=solos_of(_asked(request, options, limit_s)))

    yield Planned(f"host {size}", 80, run)


def _findings(folder: Path, arms: tuple[Arm, ...], n_ranks: int) -> dict[str, tuple[str, ...]]:
    found = {}
    for arm in arms:
        name = arm.name.replace(" ", "-")
        opened = [pw.trace(folder / f"{name}-rank{at}.json.gz") for at in range(n_ranks)]
        told = traces.report(opened)
        seen = dict.fromkeys(
            f"{each.code} {each.cause}"
            for diagnosis in told.diagnoses
            for each in diagnosis.findings
            if each.code.startswith("COMM")
        )
        found[arm.name] = tuple(seen)
    return found


PARTS: dict[str, Callable[[Options], Iterator[Planned]]] = {
    "calibrate": _calibrate,
    "ddp": _ddp,
    "lost": _lost,
    "traces": _traces,
    "split": _split,
    "fsdp": _fsdp,
    "transformers": _transformers,
    "ctas": _ctas,
    "buckets": _buckets,
    "host": _host,
}


# What they share.


def _arm(name: str, layout: Layout, **more: Any) -> Arm:
    return Arm(name=name, layout=layout, **more)


def _case(options: Options, size: str, precision: Precision) -> ModelCase:
    on_gpu = options.device == "cuda"
    return ModelCase(
        model=model(size),
        workload=Workload(
            batch_size=options.batch_size, seq_len=options.seq_len, pass_="train_step"
        ),
        configuration=Configuration(
            precision=precision if on_gpu else "fp32",
            attention="sdpa-cudnn" if on_gpu else "sdpa",
            compile="default" if on_gpu else "none",
            optimizer="adamw-fused",
        ),
        device=_kind(options),
    )


def _case_of_transformers(case: ModelCase, folder: Path) -> ModuleCase:
    """The same step of LlamaForCausalLM."""
    from against.peer import config_of  # Imports transformers, which no other part needs.

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config_of(case.model, "sdpa").to_json_string())
    return case_of_source(
        f"hf:{folder.absolute()}",
        case.workload,
        configuration=case.configuration,
        device=case.device,
    )


def _planned(
    options: Options,
    name: str,
    size: str,
    precision: Precision,
    *,
    arms: tuple[Arm, ...],
    limit_s: float,
    turns: tuple[tuple[str, ...], ...] = (),
    all_resident: bool = True,
    is_of_transformers: bool = False,
    **environ: str,
) -> Planned:
    case: ModelCase | ModuleCase = _case(options, size, precision)
    if is_of_transformers:
        case = _case_of_transformers(case, options.out.parent / f"llama-{size}")
    if options.device == "cpu":
        arms = tuple(msgspec.structs.replace(each, compiled=False) for each in arms)

    def run(limit_s: float) -> Item:
        request = ArmsRequest(
            case=case,
            arms=arms,
            turns=turns,
            all_resident=all_resident,
            n_warmup=4,
            n_solo_steps=options.steps,
            n_steps=options.steps,
            n_rounds=options.rounds,
        )
        by_rank = _asked(request, options, limit_s, environ)
        solos = solos_of(by_rank)
        return Item(
            name=name,
            solos=solos,
            compared=compared_of(by_rank),
            foreseen=tuple(_foreseen(case, arms, solos)),
        )

    return Planned(name, limit_s, run)


def _asked(
    request: ArmsRequest, options: Options, limit_s: float, environ: dict[str, str] | None = None
) -> list[list[ArmRun]]:
    found = _launched(
        "peakward.lab.parallel.arms:measure",
        msgspec.to_builtins(request),
        options,
        limit_s=limit_s,
        patience_s=PATIENCE_S,
        environ=environ,
    )
    return [msgspec.convert(each["runs"], list[ArmRun]) for each in found]


def _launched(
    target: str,
    arguments: Any,
    options: Options,
    *,
    limit_s: float,
    patience_s: float,
    environ: dict[str, str] | None = None,
) -> list[Any]:
    paths = ":".join(each for each in (str(HERE), *sys.path) if each)
    return launch(
        target,
        arguments,
        n_ranks=options.gpus,
        device=_kind(options),
        timeout_s=limit_s,
        patience_s=patience_s,
        environ={"PYTHONPATH": paths, **(environ or {})},
    )


def _kind(options: Options) -> Any:
    return options.device


def _foreseen(
    case: ModelCase | ModuleCase, arms: tuple[Arm, ...], solos: tuple[Solo, ...]
) -> Iterator[Foreseen]:
    """Time and memory as `plan --gpus` predicts them from the datasheet, where it knows the layout. It plans
    the reference decoder alone."""
    if isinstance(case, ModuleCase):
        return
    measured = {each.arm: each for each in solos}
    here = probe.environment(case.device)
    known = devices.match(here.device_name, here.device_memory_bytes)
    for arm in arms:
        seen = measured.get(arm.name)
        if seen is None or seen.step_s is None or known is None:
            continue
        peaks = [each.peak_bytes for each in seen.uses if each.peak_bytes is not None]
        told = Foreseen(
            arm=arm.name, measured_step_s=seen.step_s, measured_peak_bytes=max(peaks, default=None)
        )
        try:
            found = layout_forecast(
                case, site(known), arm.layout, reduces_in_fp32=arm.reduces_in_fp32
            )
        except PeakwardError as error:
            yield msgspec.structs.replace(told, reason=str(error))
            continue
        n_bytes = found.memory.total_bytes - found.memory.context_bytes
        yield msgspec.structs.replace(told, step_s=found.step_s, peak_bytes=n_bytes)


if __name__ == "__main__":
    main()
