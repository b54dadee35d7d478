"""Study `parallel`: ways to share a training step over several devices, in time, memory and communication."""

from collections.abc import Iterator

from peakward.records.case import CollectivesCase, Configuration, LayoutCase, ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.layout import CAPTURABLE, Layout
from peakward.records.study import Conclusion
from peakward.studies import late_ranks, layouts, values
from peakward.studies.cases import model_case
from peakward.studies.claims import Sentence
from peakward.studies.engine import Study, View
from peakward.studies.layouts import Shared
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting
from peakward.studies.values import Value, plot

RANKS = {"small": (2,), "corners": (2, 4), "full": (2, 4, 8)}
BUCKETS_MB = {"small": (), "corners": (1, 25), "full": (0, 1, 10, 100, 1000)}
LINK_BYTES = (10**6, 10**7, 10**8)
"""All-reduces that the model of buckets is fitted to."""


def case(setting: Setting) -> ModelCase:
    """The largest model and the longest sequence of the grid; on a GPU compiled, in bf16."""
    grid, on_gpu = setting.grid, setting.device == "cuda"
    precisions = setting.scope.precisions
    if precisions and precisions[0] not in layouts.PRECISIONS:
        raise PeakwardError(
            f"expected a precision of {', '.join(layouts.PRECISIONS)} between ranks, got {precisions[0]}: "
            "take one of these"
        )
    configuration = Configuration(
        precision=precisions[0] if precisions else "bf16" if on_gpu else "fp32",
        attention="sdpa",
        compile="default" if on_gpu else "none",
        optimizer="adamw-fused",
    )
    found = model_case(
        grid.models[-1 if setting.scope.name != "small" else 0],
        grid.batch_size,
        grid.seq_lens[-1 if setting.scope.name != "small" else 0],
        "train_step",
        setting.device,
    )
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    return ModelCase(**(fields | {"configuration": configuration}))


def tried(setting: Setting, n: int) -> Iterator[Layout]:
    """The layouts of so many ranks in the scope."""
    name, micro = setting.scope.name, 2 * n if setting.grid.batch_size % 2 == 0 else n
    yield Layout(dp=n)
    yield Layout(dp=n, data="flat")
    if name != "small":
        yield Layout(dp=n, data="per-parameter")
        yield Layout(dp=n, data="overlapped")
        yield Layout(dp=n, data="zero1")
        yield Layout(dp=n, data="zero2")
    yield from (Layout(dp=n, bucket_mb=mb) for mb in BUCKETS_MB[name])
    yield Layout(dp=n, data="fsdp")
    if name != "small":
        if setting.device == "cuda":
            yield from (Layout(dp=n, data=each, captured=True) for each in CAPTURABLE)
        yield Layout(dp=n, data="fsdp", wrap="whole")
        yield Layout(tp=n)
        yield Layout(pp=n, n_micro_batches=micro, schedule="gpipe")
    yield Layout(pp=n, n_micro_batches=micro)
    if name == "full":
        yield Layout(dp=n, find_unused=True)
        yield Layout(pp=n, n_micro_batches=micro, schedule="interleaved", stages_per_rank=2)
        if n > 2:
            yield Layout(dp=n // 2, data="fsdp", tp=2)
            yield Layout(dp=n // 2, data="fsdp", pp=2, n_micro_batches=4)


def points(setting: Setting) -> Iterator[Shared]:
    """The plain step of one rank, then each layout of each number of ranks."""
    protocol, given = setting.protocol(phases=False), case(setting)
    seen: set[LayoutCase] = set()
    for n in RANKS[setting.scope.name]:
        absent = setting.absent_ranks(n, setting.device)
        for each in layouts.points_of(given, tried(setting, n), protocol, absent):
            if each.case not in seen:
                seen.add(each.case)
                yield each


def link_case(setting: Setting, n: int) -> CollectivesCase:
    """All-reduces between so many ranks, for the model of buckets."""
    sizes = LINK_BYTES[: 2 if setting.scope.name == "small" else 3]
    return CollectivesCase(n_ranks=n, sizes_bytes=sizes, device=setting.device)


def links(lab: Recorder, setting: Setting) -> None:
    """Measures them, where buckets are tried."""
    for n in RANKS[setting.scope.name]:
        if BUCKETS_MB[setting.scope.name] and setting.absent_ranks(n, setting.device) is None:
            lab.measure((link_case(setting, n), setting.protocol(phases=False)))


def buckets(view: View[Shared]) -> Iterator[Conclusion]:
    """The fastest bucket of those tried, beside the best by the overhead model from measured all-reduces."""
    for group in layouts.by_ranks(view):
        n = layouts.layout(group[0]).n_ranks
        sized = [row for row in group if layouts.layout(row).bucket_mb and row.median_s]
        link = view.find((link_case(view.setting, n), view.setting.protocol(phases=False)))
        fits = () if link is None or link.collectives is None else link.collectives.fits
        fit = next((each for each in fits if each.collective == "all-reduce"), None)
        if len(sized) < 2 or fit is None or sized[0].measurement is None:
            continue
        best = min(sized, key=lambda row: row.median_s or 0)
        gradients = layouts.held("gradients").number(best)
        share = 2 * (n - 1) / n
        due = layouts.best_bucket_mb(gradients or 0.0, fit.latency_s, fit.bus_bytes_per_s / share)
        told = Sentence()
        size = told("fastest bucket, MB", layouts.layout(best).bucket_mb, "count", best.measurement)
        model = told("best bucket by the model, MB", due, "count", link, best.measurement)
        time = told("time", best.median_s, "s", best.measurement)
        yield from told.end(
            f"On {n} ranks, of the buckets tried {size} MB is fastest ({time}). The overhead model, a "
            f"latency for each bucket and the last one in full sight, has its least at {model} MB."
        )


STUDY = Study(
    title="What does each way to share a training step over devices take, and which to choose?",
    points=points,
    search=links,
    tables=layouts.tables(),
    plots=(
        plot(
            "Step by memory held on a rank",
            Value("held between steps", "bytes", layouts.held_bytes),
            values.TIME,
            lambda row: f"{layouts.layout(row).n_ranks} ranks",
            names=lambda row: row.name,
        ),
    ),
    claims=(layouts.choice, late_ranks.claim, layouts.naive, buckets),
    notes=layouts.notes,
)
