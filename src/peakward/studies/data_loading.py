"""Study `data-loading`: what it costs to feed a train step with real text, and when the loader holds it up.

Every step is timed on resident random tokens first, then fed by loaders of the same text: tokenised once and
cached, or on the fly; by the process itself or by workers; through pageable or pinned memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from statistics import fmean
from typing import get_args

import msgspec

from peakward.levers.workload import MOST_WORKERS
from peakward.records.case import ModelCase, Sampler, Source, TextData, Tokenise
from peakward.records.measurement import Feeding
from peakward.records.study import Conclusion, Unit
from peakward.report.cases import copies, feed, workload
from peakward.studies import claims, values
from peakward.studies.cases import model_case, place, with_work
from peakward.studies.claims import Sentence, known, least, sources
from peakward.studies.engine import Point, Study, View
from peakward.studies.readings import mean_s, ratio
from peakward.studies.scope import ScopeName
from peakward.studies.setting import Setting
from peakward.studies.turns import Turned, in_turns
from peakward.studies.values import SEQ_LEN, STATUS, VERDICT, Value, ends, label, plot, table, text

TEXT = Source("python-topics")
"""It comes with Python, so that the study needs nothing but Peakward."""
MODES: tuple[Tokenise, ...] = ("cached", "on-the-fly")
WORKERS: dict[ScopeName, tuple[int, ...]] = {
    "small": (0, 2),
    "corners": (0, MOST_WORKERS),
    "full": (0, 2, 4, MOST_WORKERS),
}
COPIES = ((False, False), (True, False), (True, True))
"""Whether memory is pinned, and whether copies let the host go on; below the full scope the two ends."""
N_RANKS = 4
WARMUP_STEPS = 2 * MOST_WORKERS + 8
"""More than the two batches that each worker makes ahead, so that timed steps wait for new ones."""
MIN_STEPS = 30
TURNS = 3
"""Fed steps and resident ones are measured in so many turns, every second one backwards: one turn of an H100
gave fed steps at 0.78 to 0.91 of the resident ones' time, which is its host's noise and no loader's gain. A
turn has its own seed, which orders the text and draws the weights anew."""
BOTTLENECK = 0.05
"""A loader is called the bottleneck where steps wait for more than this share of their time."""

Case = Point[ModelCase]


def points(setting: Setting) -> Iterator[Case]:
    """Turn by turn resident steps, size × sequence × tokenising × workers × copies; then samplers."""
    resident = tuple(resident_steps(setting))
    fed = [with_work(case, data=data) for case in resident for data in loaders(setting)]
    for turn in range(TURNS):
        for case in (*resident, *fed)[:: -1 if turn % 2 else 1]:
            yield point(with_work(case, seed=turn), setting)
    for sampler in get_args(Sampler):
        data = text_data(setting, n_ranks=N_RANKS, sampler=sampler)
        yield point(with_work(resident[0], data=data), setting)


def point(case: ModelCase, setting: Setting) -> Case:
    """A case beside the same step on resident tokens; the mean over workers' bursts needs all its steps."""
    by = setting.protocol(
        warmup_steps=WARMUP_STEPS, min_steps=MIN_STEPS, relative_half_width=0.0, phases=False
    )
    data = case.workload.data
    name = f"{processes(data)} with {way(data).replace(', ', ' ')} copies" if data else ""
    return Point(
        case=case, protocol=by, base=(with_work(case, data=None), by), name=name, timed=mean_s
    )


def resident_steps(setting: Setting) -> Iterator[ModelCase]:
    """Yields steps on resident tokens. On a GPU they are as quick as torch's own parts make them, since a
    loader must keep up with that."""
    scope, grid = setting.scope, setting.grid
    models, seq_lens = grid.models, grid.seq_lens
    if scope.name == "small":  # one case of the CPU's grid, the quickest
        models, seq_lens = scope.models or models[:1], scope.seq_lens or seq_lens[:1]
    quick = {"precision": "bf16-mixed", "attention": "sdpa", "optimizer": "adamw-fused"}
    settings = quick if setting.device == "cuda" else {}
    for shape, seq_len in product(models, seq_lens):
        yield model_case(shape, grid.batch_size, seq_len, "train_step", setting.device, **settings)


def loaders(setting: Setting) -> Iterator[TextData]:
    """Tokenising × copies × workers."""
    scope = setting.scope
    ways = COPIES if scope.name == "full" else COPIES[::2]
    for mode, (pinned, going_on), n in product(
        MODES,
        ways if setting.device == "cuda" else COPIES[:1],
        scope.workers or WORKERS[scope.name],
    ):
        yield text_data(
            setting, tokenise=mode, n_workers=n, pin_memory=pinned, non_blocking=going_on
        )


def text_data(setting: Setting, **fields: object) -> TextData:
    """The text that was asked for, by the tokenizer that was."""
    bare = TextData(text=setting.scope.text or TEXT, tokenizer=tokenizer(setting))
    return msgspec.structs.replace(bare, **fields)


def tokenizer(setting: Setting) -> Source:
    """Returns the tokenizer that was asked for, else byte pairs where their package is there, else bytes."""
    return setting.scope.tokenizer or Source("bpe" if setting.has_tokenizers else "bytes")


def way(data: TextData) -> str:
    """To the device: "pageable", or "pinned, non-blocking"."""
    return ", ".join(copies(data)) or "pageable"


def processes(data: TextData) -> str:
    """By their number: "8 loader workers"."""
    return f"{data.n_workers} loader worker{'' if data.n_workers == 1 else 's'}"


class Step(Turned[Case], frozen=True, kw_only=True):
    """A step and its base, the same on resident tokens, in several turns."""

    @property
    def data(self) -> TextData:
        """How it is fed, of a step that is."""
        data = self.point.case.workload.data
        assert data is not None
        return data

    @property
    def feed(self) -> str:
        """Text, tokenizer and time of tokenising."""
        return feed(self.data)

    @property
    def loader(self) -> str:
        """Names what feeds the step, so that steps fed alike share it: "8 loader workers from …"."""
        return f"{processes(self.data)} from {self.feed}"

    @property
    def place(self) -> str:
        """For a sentence, without the data: "tiny 2 × 128 train_step"."""
        return place(with_work(self.point.case, data=None))

    @property
    def feeding(self) -> Feeding | None:
        """The record of feeding in the first turn that ended `ok`."""
        return None if self.measurement is None else self.measurement.feeding

    def mean_of(self, read: Callable[[Feeding], Sequence[float] | None]) -> float | None:
        """Returns what a step takes for one part of feeding, on average over all turns."""
        found = [each.measurement.feeding for each in self.turns if each.measurement is not None]
        means = [fmean(times) for each in found if each is not None and (times := read(each))]
        return fmean(means) if means else None

    @property
    def waited_share(self) -> float | None:
        """The share of the step in which the device waits for data: a GPU's idle time, a CPU's wait."""
        waited_s = self.mean_of(lambda each: each.wait_s if each.idle_s is None else each.idle_s)
        return ratio(waited_s, self.median_s)

    def a_second(self, step_s: float | None) -> float | None:
        """Tokens that count, where a step takes so long."""
        return ratio(self.case.workload.tokens_per_step, step_s)

    @property
    def making_s(self) -> float | None:
        """The time of one process for a step's tokens: the host's wait, where the step itself makes them."""
        return None if self.data.n_workers else self.mean_of(lambda each: each.wait_s)


def steps(view: View[Case], *, n_ranks: int) -> list[Step]:
    """The steps, as `STUDY.rows` made them, that are fed as one rank of so many; of 0 the resident ones."""
    found = [row for row in view.rows if isinstance(row, Step)]
    ranks = [0 if (data := row.case.workload.data) is None else data.n_ranks for row in found]
    return [row for row, n in zip(found, ranks, strict=True) if n == n_ranks]


def fed(view: View[Case]) -> list[Step]:
    """The steps that a loader feeds."""
    return steps(view, n_ranks=1)


def ranked(view: View[Case]) -> list[Step]:
    """The steps of one rank of several that ran, in one turn: what they read does not vary."""
    return [step for step in steps(view, n_ranks=N_RANKS) if step.feeding is not None]


def waits(view: View[Case]) -> Iterator[Conclusion]:
    """How long the device waits with plain copies, and what the step takes in all, by workers; and where the
    loader is the bottleneck."""
    for group in values.groups(fed(view), lambda each: each.loader):
        loader, plain = group[0].loader, [each for each in group if way(each.data) == "pageable"]
        waiting = f"With {loader} a step waits"
        yield from claims.extremes(waiting, WAITED, plain, of="of its time for data")
        yield from claims.speeds(group, f"Feeding by {loader}", "resident tokens")
    if found := known(fed(view), WAITED.number):
        told, behind = Sentence(), sources(each for _, each in found)
        held_up = [each.loader for share, each in found if share > BOTTLENECK]
        yield from told.end(
            "The loader is the bottleneck, with waits of more than "
            f"{told('limit', BOTTLENECK, 'share', *behind)} of a step, in "
            f"{told.count('cases held up', len(held_up), behind)} of "
            f"{told.count('cases', len(found), behind)} cases: "
            f"{'; '.join(dict.fromkeys(held_up)) or 'with none'}."
        )


def rates(view: View[Case]) -> Iterator[Conclusion]:
    """Compares what one process makes with what the step takes: the crossover without workers."""
    found = [each for each in fed(view) if each.making_s is not None]
    for group in values.groups(found, lambda each: each.feed):
        one, of = f"One process of {group[0].feed}", "of the time of the step on resident tokens"
        yield from claims.extremes(f"{one} makes", MADE, group, of="by itself")
        yield from claims.extremes(f"{one} makes a step's tokens in", MAKING, group, of=of)


def ways(view: View[Case]) -> Iterator[Conclusion]:
    """Each number of workers against none, copies being the same; and pinned memory, alone and with copies
    that do not block, against pageable memory."""
    found = fed(view)
    for group in values.groups(found, lambda each: each.loader):
        if group[0].data.n_workers:
            pairs = against(group, found, n_workers=0)
            yield from claims.gains(pairs, f"Feeding by {group[0].loader}", "feeding by none")
    for group in values.groups(found, lambda each: way(each.data)):
        if group[0].data.pin_memory:
            pairs = against(group, found, pin_memory=False, non_blocking=False)
            named = f"Feeding by {way(group[0].data)} copies"
            yield from claims.gains(pairs, named, "feeding by pageable ones")


def against(
    chosen: Iterable[Step], others: Iterable[Step], **changes: bool | int
) -> Iterator[Step]:
    """Each step held against the one whose data differ in the changes alone."""
    by_case = {each.point.case: each for each in others}
    for each in chosen:
        data = msgspec.structs.replace(each.data, **changes)
        if base := by_case.get(with_work(each.point.case, data=data)):
            yield each.against(base)


def best(view: View[Case]) -> Iterator[Conclusion]:
    """The quickest way to feed each step, against no feeding at all."""
    for group in values.groups(fed(view), lambda each: each.feed):
        timed = known(group, lambda each: each.median_s)
        quickest = [least(of)[1] for of in values.groups(timed, lambda each: each[1].place)]
        absent = claims.not_timed(each for each in group if each.time is None)
        among = f"The quickest of the loaders{' timed' if absent else ''} ({group[0].feed})"
        yield from claims.speeds(quickest, among, "resident tokens", absent=absent)


def samplers(view: View[Case]) -> Iterator[Conclusion]:
    """Says for each sampler how much of what a rank reads in an epoch another rank reads too."""
    for step in ranked(view):
        yield from claims.listed(f"Sampler {step.data.sampler}", RANKS, step, step.measurement)


def notes(view: View[Case]) -> Iterator[str]:
    """How waits and intervals are to be read, and what was left out."""
    yield (
        "The host waits until the loader hands over a step's batches. A GPU with earlier work in its queue "
        "need not wait with it: its idle time lies between two events around that wait. A CPU's wait is its "
        "host's. Memory of the workers is not counted."
    )
    yield (
        f"Fed and resident steps are measured in {TURNS} turns, every second one backwards; a ratio is that "
        "of the pairs, one a turn. Step times are means, for workers hand over batches in bursts; their "
        "intervals are between turns, of one turn from the means of its ten stretches."
    )
    yield (
        "No loader makes a step faster than resident tokens do: where fed steps come out faster, so much is "
        "this host's noise, and a smaller difference between two cases may be noise as well."
    )
    if not view.on_gpu:
        yield "Not run: pinned memory and copies that do not block, which only a GPU has."
    if tokenizer(view.setting).name == "bytes" and view.setting.scope.tokenizer is None:
        yield (
            "Tokens are bytes, which cost a loader next to nothing; for byte pairs: "
            "pip install 'peakward[data]'."
        )


def texts(view: View[Case]) -> Iterator[Step]:
    """Yields one step for each text that was read: of several ways to copy the same, the first that ran."""
    for group in values.groups(fed(view), lambda each: (each.place, each.loader)):
        yield from [each for each in group if each.feeding is not None][:1]


def read(name: str, unit: Unit, field: str) -> Value:
    """A field of what feeding took."""
    return Value(name, unit, lambda step: getattr(step.feeding, field))


SIZE = (
    values.SIZE[0],
    text("workload", lambda step: workload(with_work(step.point.case, data=None).workload)),
)
MEAN = (
    *ends(("mean step", "from", "to"), "s", lambda step: step.time),
    Value("throughput", "tokens_per_s", lambda step: step.a_second(step.median_s)),
)
N_WORKERS = Value("workers", "count", lambda step: step.data.n_workers)
WAITED = Value("waiting, of the step", "share", lambda step: step.waited_share)
SEQUENCES = read("sequences", "count", "n_sequences")
RANKS = (
    Value("ranks", "count", lambda step: step.data.n_ranks),
    SEQUENCES,
    read("rank 0 reads", "count", "n_rank_sequences"),
    read("also read by another", "count", "n_shared_sequences"),
)
MADE = Value("tokens made", "tokens_per_s", lambda step: step.a_second(step.making_s))
MAKING = Value(
    "making over the step",
    "ratio",
    lambda step: ratio(step.making_s, step.base_time and step.base_time.estimate),
)
STUDY = Study(
    title="When does loading text hold up a step?",
    points=points,
    rows=lambda view: in_turns(Step, view.rows),
    tables=(
        table(
            "The same steps on resident tokens",
            (*SIZE, STATUS, *MEAN, VERDICT),
            lambda view: steps(view, n_ranks=0),
        ),
        table(
            "Train steps fed by a loader",
            (
                *SIZE,
                text("text", lambda step: step.feed),
                N_WORKERS,
                text("copies", lambda step: way(step.data)),
                STATUS,
                *MEAN,
                *ends(("over resident", "low", "high"), "ratio", lambda step: step.over_base),
                Value("turns", "count", lambda step: step.n_repeats or None),
                Value("host waits", "s", lambda step: step.mean_of(lambda each: each.wait_s)),
                Value("host copies", "s", lambda step: step.mean_of(lambda each: each.copy_s)),
                Value("GPU idle", "s", lambda step: step.mean_of(lambda each: each.idle_s)),
                WAITED,
                VERDICT,
            ),
            fed,
            note="Means of the timed steps of all turns, with 95% intervals, of two turns and more between "
            "turns. Over resident: of the pairs of the turns. Resident: random tokens that lie on the "
            "device. GPU idle: done with its earlier work while the host waited for batches.",
        ),
        table(
            "The text, and the wait for the first batch",
            (
                label("text", lambda step: step.feed),
                text("model", lambda step: step.point.case.name),
                Value("sequence", "count", SEQ_LEN.get),
                N_WORKERS,
                read("size", "bytes", "text_bytes"),
                read("tokens", "count", "n_tokens"),
                read("vocabulary", "count", "vocab_size"),
                SEQUENCES,
                read("first batch", "s", "first_wait_s"),
            ),
            texts,
        ),
        table(
            "Samplers of several ranks, over an epoch of rank 0",
            (text("sampler", lambda step: step.data.sampler), *RANKS),
            ranked,
            note="One rank ran; what the others read follows from the seed.",
        ),
    ),
    plots=(
        plot(
            lambda step: f"Waiting for data, sequence {SEQ_LEN.get(step)}",
            Value("loader workers", "count", N_WORKERS.get),
            Value("share of the step", "share", WAITED.get),
            lambda step: (
                f"{step.point.case.model.name}, {step.data.tokenise.replace('-', ' ')}, {way(step.data)}"
            ),
            fed,
            each=SEQ_LEN.get,
        ),
    ),
    claims=(waits, rates, ways, best, samplers),
    notes=notes,
)
