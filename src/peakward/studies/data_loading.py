"""Study `data-loading`: what it costs to feed a train step with real text, and when the loader holds it up.

Every step is timed on resident random tokens first, then fed by loaders of the same text: tokenised once and
cached, or on the fly; by the process itself or by workers; through pageable or pinned memory.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import get_args

import msgspec

from peakward.levers.workload import MOST_WORKERS
from peakward.records.case import ModelCase, Sampler, Source, TextData, Tokenise
from peakward.records.study import Conclusion, Unit
from peakward.report.cases import workload
from peakward.studies import values
from peakward.studies.cases import model_case, with_work
from peakward.studies.claims import Sentence, known, least, most, not_timed, sources
from peakward.studies.engine import Point, Study, View
from peakward.studies.fed_steps import Step, against, compared, ends_of, in_turns, processes, way
from peakward.studies.scope import ScopeName
from peakward.studies.setting import Setting
from peakward.studies.values import SEQ_LEN, STATUS, VERDICT, Value, ends, label, plot, table, text

TEXT = Source("python-topics")
"""It comes with Python, so that the study needs nothing but Peakward."""
MODES: tuple[Tokenise, ...] = ("cached", "on-the-fly")
WORKERS: dict[ScopeName, tuple[int, ...]] = {
    "small": (0, 2),
    "corners": (0, MOST_WORKERS),
    "full": (0, 2, 4, MOST_WORKERS),
}
PAGEABLE, PINNED, NON_BLOCKING = (False, False), (True, False), (True, True)
"""Whether memory is pinned, and whether copies let the host go on."""
COPIES: dict[ScopeName, tuple[tuple[bool, bool], ...]] = {
    "small": (PAGEABLE, NON_BLOCKING),
    "corners": (PAGEABLE, NON_BLOCKING),
    "full": (PAGEABLE, PINNED, NON_BLOCKING),
}
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
    return Point(case=case, protocol=by, base=(with_work(case, data=None), by), name=name)


def resident_steps(setting: Setting) -> Iterator[ModelCase]:
    """On a GPU as quick a step as torch's own parts make, since a loader must keep up with that."""
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
    copies = COPIES[scope.name] if setting.device == "cuda" else (PAGEABLE,)
    workers = scope.workers or WORKERS[scope.name]
    for mode, (pinned, going_on), n in product(MODES, copies, workers):
        yield text_data(
            setting, tokenise=mode, n_workers=n, pin_memory=pinned, non_blocking=going_on
        )


def text_data(setting: Setting, **fields: object) -> TextData:
    """The text that was asked for, by the tokenizer that was."""
    bare = TextData(text=setting.scope.text or TEXT, tokenizer=tokenizer(setting))
    return msgspec.structs.replace(bare, **fields)


def tokenizer(setting: Setting) -> Source:
    """What was asked for, else byte pairs where their package is there, else bytes."""
    return setting.scope.tokenizer or Source("bpe" if setting.has_tokenizers else "bytes")


def steps(view: View[Case], of: Callable[[TextData | None], bool]) -> tuple[Step, ...]:
    """The steps that are fed so, their turns together."""
    return in_turns(row for row in view.rows if of(row.point.case.workload.data))


def fed(view: View[Case]) -> tuple[Step, ...]:
    """The steps that a loader feeds."""
    return steps(view, lambda data: data is not None and data.n_ranks == 1)


def ranked(view: View[Case]) -> Iterator[Step]:
    """The steps of one rank of several that ran, in one turn: what they read does not vary."""
    found = steps(view, lambda data: data is not None and data.n_ranks > 1)
    return (each for each in found if each.feeding is not None)


def waits(view: View[Case]) -> Iterator[Conclusion]:
    """How long the device waits and what the step takes in all, with plain copies, by workers."""
    plain = [each for each in fed(view) if way(each.data) == "pageable"]
    for found in values.groups(known(plain, WAITED.number), lambda each: each[1].loader):
        group, told, (high, last) = [each for _, each in found], Sentence(), most(found)
        largest = told("largest share", high, "share", last.measurement)
        limit = told("limit", BOTTLENECK, "share", *sources(group))
        held_up = [each for share, each in found if share > BOTTLENECK]
        text = (
            f"{last.feed}, {processes(last.data)}: the device waits up to {largest} of a step for data "
            f"({last.place}); the loader is the bottleneck, above {limit}, in "
            f"{told.count('cases held up', len(held_up), sources(group))} of "
            f"{told.count('cases', len(group), sources(group))}"
        )
        if ratios := [each.over_resident for each in group if each.over_resident is not None]:
            slowest = max(ratios, key=lambda each: each.time.estimate)
            over, within = ends_of(told, "over resident", slowest, slowest.time)
            text += f", and steps take up to {over} their time on resident tokens ({within})"
        yield from told.end(f"{text}.")


def noise(view: View[Case]) -> Iterator[Conclusion]:
    """How many fed steps come out faster than resident ones, which is the host's noise."""
    ratios = [each.over_resident for each in fed(view) if each.over_resident is not None]
    faster = [each for each in ratios if each.time.high < 1]
    if faster:
        told, behind = Sentence(), [source for each in ratios for source in each.sources]
        fastest = min(faster, key=lambda each: each.time.estimate)
        n = told.count("fed steps that come out faster", len(faster), behind)
        n_all = told.count("cases", len(ratios), behind)
        over, within = ends_of(told, "over resident", fastest, fastest.time)
        yield from told.end(
            f"In {n} of {n_all} cases fed steps come out faster than resident ones, in one at {over} of "
            f"their time ({within}). No loader makes a step faster: so much is this host's noise, and a "
            "smaller difference between two cases may be noise as well."
        )


def rates(view: View[Case]) -> Iterator[Conclusion]:
    """What one process makes, against what the quickest step takes: the crossover without workers."""
    found = known(fed(view), lambda each: each.making_share)
    for group in values.groups(found, lambda each: each[1].feed):
        told, (share, tightest) = Sentence(), most(group)
        made = told("tokens made", tightest.made_per_s, "tokens_per_s", tightest.measurement)
        cost = told("making over the step", share, "ratio", tightest.measurement, tightest.base)
        yield from told.end(
            f"{tightest.feed}: one process makes {made}, so that the tokens of {tightest.place} cost it "
            f"{cost} of what that step takes on resident tokens"
            f"{': more than it can make meanwhile' if share > 1 else ''}."
        )


def workers(view: View[Case]) -> Iterator[Conclusion]:
    """Each number of workers against none, copies being the same."""
    for group in values.groups(fed(view), lambda each: each.loader):
        if group[0].data.n_workers:
            named = f"{processes(group[0].data)} ({group[0].feed})"
            yield from compared(named, "none", against(group, fed(view), n_workers=0))


def copying(view: View[Case]) -> Iterator[Conclusion]:
    """Pinned memory, alone and with copies that do not block, against pageable memory."""
    for name in ("pinned", "pinned, non-blocking"):
        chosen = [each for each in fed(view) if way(each.data) == name]
        pairs = against(chosen, fed(view), pin_memory=False, non_blocking=False)
        yield from compared(f"{name} copies", "pageable ones", pairs)


def best(view: View[Case]) -> Iterator[Conclusion]:
    """The quickest way to feed each step, against no feeding at all."""
    for group in values.groups(fed(view), lambda each: each.feed):
        timed = known(group, lambda each: each.step_s)
        quickest = [least(of)[1] for of in values.groups(timed, lambda each: each[1].place)]
        pairs = [each.over_resident for each in quickest if each.over_resident is not None]
        absent = not_timed(each for each in group if each.step_s is None)
        among = f"the quickest of the loaders{' timed' if absent else ''} ({group[0].feed})"
        yield from compared(among, "resident tokens", pairs, absent)


def samplers(view: View[Case]) -> Iterator[Conclusion]:
    """What ranks read of one another's."""
    for step in ranked(view):
        told = Sentence()
        ranks = told("ranks", step.data.n_ranks, "count", step.measurement)
        own, whole, shared = (told.of(each, step) for each in (READ, SEQUENCES, SHARED))
        yield from told.end(
            f"Sampler {step.data.sampler}: of {ranks} ranks rank 0 reads {own} of {whole} sequences in an "
            f"epoch, of which another reads {shared} too."
        )


def notes(view: View[Case]) -> Iterator[str]:
    """How waits and intervals are to be read, and what was left out."""
    yield (
        "The host waits until the loader hands over a step's batches. A GPU with earlier work in its queue "
        "need not wait with it: its idle time lies between two events around that wait. A CPU computes "
        "nothing meanwhile, so the host's wait is its own."
    )
    yield (
        f"Fed and resident steps are measured in {TURNS} turns, every second one backwards; a ratio is that "
        "of the pairs, one a turn. Step times are means, for workers hand over batches in bursts. Their "
        "intervals are between turns; of one turn they are from the means of its ten stretches, which know "
        "nothing of what differs from process to process. Memory of the workers is not counted."
    )
    if not view.on_gpu:
        yield "Not run: pinned memory and copies that do not block, which only a GPU has."
    if tokenizer(view.setting).name == "bytes" and view.setting.scope.tokenizer is None:
        yield (
            "Tokens are bytes, which cost a loader next to nothing; for byte pairs: "
            "pip install 'peakward[data]'."
        )


def texts(view: View[Case]) -> Iterator[Step]:
    """What was read: of several ways to copy the same the first that ran."""
    for group in values.groups(fed(view), lambda each: (each.place, each.loader)):
        yield from [each for each in group if each.feeding is not None][:1]


def shortest(view: View[Case]) -> tuple[Step, ...]:
    """The steps of the shortest sequence, where they are quickest."""
    by_length = values.groups(fed(view), SEQ_LEN.number)
    return min(by_length, key=lambda of: of[0].point.case.workload.seq_len, default=())


def read(name: str, unit: Unit, field: str) -> Value:
    """A field of what feeding took."""
    return Value(name, unit, lambda step: getattr(step.feeding, field))


SIZE = (
    values.SIZE[0],
    text("workload", lambda step: workload(with_work(step.point.case, data=None).workload)),
)
MEAN = (
    *ends(("mean step", "from", "to"), "s", lambda step: step.mean_s),
    Value("throughput", "tokens_per_s", lambda step: step.tokens_per_s),
)
N_WORKERS = Value("workers", "count", lambda step: step.data.n_workers)
WAITED = Value("waiting, of the step", "share", lambda step: step.waited_share)
SEQUENCES = read("sequences", "count", "n_sequences")
READ = read("rank 0 reads", "count", "n_rank_sequences")
SHARED = read("also read by another", "count", "n_shared_sequences")
STUDY = Study(
    title="When does loading text hold up a step?",
    points=points,
    tables=(
        table(
            "The same steps on resident tokens",
            (*SIZE, STATUS, *MEAN, VERDICT),
            lambda view: steps(view, lambda data: data is None),
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
                *ends(
                    ("over resident", "low", "high"),
                    "ratio",
                    lambda step: step.over_resident and step.over_resident.time,
                ),
                Value(
                    "turns", "count", lambda step: step.over_resident and step.over_resident.n_turns
                ),
                Value("host waits", "s", lambda step: step.host_waits_s),
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
            (
                text("sampler", lambda step: step.data.sampler),
                Value("ranks", "count", lambda step: step.data.n_ranks),
                SEQUENCES,
                READ,
                SHARED,
            ),
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
            shortest,
            each=SEQ_LEN.get,
        ),
    ),
    claims=(waits, rates, workers, copying, best, noise, samplers),
    notes=notes,
)
