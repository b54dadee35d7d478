"""Study `data-loading`: what it costs to feed a train step with real text, and when the loader holds it up.

Every step is timed on resident random tokens first, then fed by loaders of the same text: tokenised once and
cached, or on the fly; by the process itself or by workers; through pageable or pinned memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from statistics import fmean, geometric_mean
from typing import get_args

import msgspec

from peakward.levers.workload import MOST_WORKERS
from peakward.records.case import ModelCase, Sampler, Source, TextData, Tokenise
from peakward.records.measurement import Feeding, Interval
from peakward.records.study import Conclusion, Plot, Unit
from peakward.report.cases import copies, feed, workload
from peakward.studies import cases, values
from peakward.studies.cases import model_case, with_work
from peakward.studies.claims import Sentence, known, least, most, not_timed, sources
from peakward.studies.engine import Point, Study, View
from peakward.studies.readings import ratio
from peakward.studies.scope import ScopeName
from peakward.studies.setting import Setting
from peakward.studies.turns import InTurns, Ratio, in_turns
from peakward.studies.values import SEQ_LEN, STATUS, VERDICT, Value, ends, label, plot, table, text

TEXT = Source("python-topics")
"""It comes with Python, so that the study needs nothing but Peakward."""
MODES: tuple[Tokenise, ...] = ("cached", "on-the-fly")
WORKERS: dict[ScopeName, tuple[int, ...]] = {
    "small": (0, 2),
    "corners": (0, MOST_WORKERS),
    "full": (0, 2, 4, MOST_WORKERS),
}
PAGEABLE = (False, False)
PINNED = (True, False)
NON_BLOCKING = (True, True)
Copies = tuple[bool, bool]
"""Whether memory is pinned, and whether copies let the host go on."""
COPIES: dict[ScopeName, tuple[Copies, ...]] = {
    "small": (PAGEABLE, NON_BLOCKING),
    "corners": (PAGEABLE, NON_BLOCKING),
    "full": (PAGEABLE, PINNED, NON_BLOCKING),
}
N_RANKS = 4
WARMUP_STEPS = 2 * MOST_WORKERS + 8
"""More than the two batches that torch has each worker make ahead, so that timed steps take batches at
the rate at which they are made."""
MIN_STEPS = 30
TURNS = 3
"""Fed steps and resident ones are measured in so many turns, every second one backwards: one turn of an H100
gave fed steps at 0.78 to 0.91 of the resident ones' time, which is its host's noise and no loader's gain. A
turn has its own seed, which orders the text and draws the weights anew."""
BOTTLENECK = 0.05
"""A loader is called the bottleneck where steps wait for more than this share of their time."""

Case = Point[ModelCase]
Step = InTurns[Case]


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
    """A case beside the same step on resident tokens.

    It is never ended early: the mean over workers' bursts is steady, the median is not.
    """
    by = setting.protocol(
        warmup_steps=WARMUP_STEPS, min_steps=MIN_STEPS, relative_half_width=0.0, phases=False
    )
    data = case.workload.data
    name = "resident tokens"
    if data is not None:
        name = f"{data.n_workers} {processes(data)} with {way(data).replace(', ', ' ')} copies"
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
    rows = [row for row in view.rows if of(row.point.case.workload.data)]
    return in_turns(rows, lambda row: with_work(row.point.case, seed=0))


def resident(view: View[Case]) -> tuple[Step, ...]:
    """The steps on resident tokens."""
    return steps(view, lambda data: data is None)


def fed(view: View[Case]) -> tuple[Step, ...]:
    """The steps that a loader feeds."""
    return steps(view, lambda data: data is not None and data.n_ranks == 1)


def ranked(view: View[Case]) -> tuple[Step, ...]:
    """The steps of one rank of several that ran, in one turn: what they read does not vary."""
    found = steps(view, lambda data: data is not None and data.n_ranks > 1)
    return tuple(each for each in found if feeding(each) is not None)


def data_of(step: Step) -> TextData:
    """How it is fed."""
    data = step.point.case.workload.data
    assert data is not None
    return data


def feeding(step: Step) -> Feeding | None:
    """What feeding took in the first turn that ended `ok`."""
    return None if step.measurement is None else step.measurement.feeding


def mean_of(step: Step, read: Callable[[Feeding], Sequence[float] | None]) -> float | None:
    """What a step takes of something, on average over all turns."""
    found = [
        fmean(times)
        for each in step.turns
        if each.measurement is not None and each.measurement.feeding is not None
        if (times := read(each.measurement.feeding))
    ]
    return fmean(found) if found else None


def host_waits_s(step: Step) -> float | None:
    """The host's wait in a step."""
    return mean_of(step, lambda each: each.wait_s)


def waited_share(step: Step) -> float | None:
    """The share of the step in which the device waits for data: a GPU's idle time, a CPU's wait."""
    waited_s = mean_of(step, lambda each: each.wait_s if each.idle_s is None else each.idle_s)
    return ratio(waited_s, None if step.mean_s is None else step.mean_s.estimate)


def made_per_s(step: Step) -> float | None:
    """Tokens a second that one process makes: known where the step itself makes its batches."""
    if data_of(step).n_workers:
        return None
    return ratio(step.point.case.workload.tokens_per_step, host_waits_s(step))


def making_share(step: Step) -> float | None:
    """The time in which one process makes a step's tokens, over the step's on resident tokens."""
    made, base_s = made_per_s(step), step.base_mean_s
    if made is None or base_s is None:
        return None
    return step.point.case.workload.tokens_per_step / made / base_s.estimate


def way(data: TextData) -> str:
    """To the device: "pageable", or "pinned, non-blocking"."""
    return ", ".join(copies(data)) or "pageable"


def processes(data: TextData) -> str:
    """The workers by their number."""
    return "loader worker" if data.n_workers == 1 else "loader workers"


def feed_of(step: Step) -> str:
    """Text, tokenizer and time of tokenising."""
    return feed(data_of(step))


def by_workers(step: Step) -> tuple[str, int]:
    """What steps with as many workers share."""
    return feed_of(step), data_of(step).n_workers


def place(step: Step) -> str:
    """For a sentence: "tiny 2 × 128 train_step"."""
    return cases.place(with_work(step.point.case, data=None))


def waits(view: View[Case]) -> Iterator[Conclusion]:
    """How long the device waits and what the step takes in all, with plain copies, by workers."""
    plain = [each for each in fed(view) if way(data_of(each)) == "pageable"]
    for found in values.groups(known(plain, waited_share), lambda each: by_workers(each[1])):
        group, told = [each for _, each in found], Sentence()
        (low, first), (high, last), behind = least(found), most(found), sources(group)
        n_workers = told("workers", data_of(first).n_workers, "count", *behind)
        largest = told("largest share", high, "share", last.measurement)
        limit = told("limit", BOTTLENECK, "share", *behind)
        held_up = sum(share > BOTTLENECK for share, _ in found)
        starved = told.count("cases held up", held_up, behind)
        n = told.count("cases", len(group), behind)
        text = (
            f"{feed_of(first)}, {n_workers} {processes(data_of(first))}: the device waits {largest} of a "
            f"step for data ({place(last)})"
        )
        if len(group) > 1:
            text += f", at least {told('least share', low, 'share', first.measurement)}"
        text += f"; the loader is the bottleneck, above {limit}, in {starved} of {n}"
        if ratios := [each.ratio for each in group if each.ratio is not None]:
            slowest = max(ratios, key=lambda each: each.time.estimate)
            over, within = ends_of(told, "over resident", slowest, slowest.time)
            sure = "" if slowest.is_told_apart else ": not told apart"
            up_to = "up to " if len(group) > 1 else ""
            text += f", and steps take {up_to}{over} their time on resident tokens ({within}{sure})"
        yield from told.end(f"{text}.")


def ends_of(told: Sentence, quantity: str, of: Ratio, found: Interval) -> tuple[str, str]:
    """The estimate, and the ends with what they are within."""
    estimate = told(quantity, found.estimate, "ratio", *of.sources)
    return estimate, f"{told.range(quantity, found, 'ratio', *of.sources)}{of.within}"


def noise(view: View[Case]) -> Iterator[Conclusion]:
    """How many fed steps come out faster than resident ones: feeding takes no time away, so that so much is
    the host's."""
    ratios = [each.ratio for each in fed(view) if each.ratio is not None]
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
    for group in values.groups(known(fed(view), making_share), lambda each: feed_of(each[1])):
        told, (share, tightest) = Sentence(), most(group)
        made = told("tokens made", made_per_s(tightest), "tokens_per_s", tightest.measurement)
        cost = told("making over the step", share, "ratio", tightest.measurement, tightest.base)
        yield from told.end(
            f"{feed_of(tightest)}: one process makes {made}, so that the tokens of {place(tightest)} cost it "
            f"{cost} of what that step takes on resident tokens"
            f"{': more than it can make meanwhile' if share > 1 else ''}."
        )


def workers(view: View[Case]) -> Iterator[Conclusion]:
    """Each number of workers against none, copies being the same."""
    for group in values.groups(fed(view), by_workers):
        if n := data_of(group[0]).n_workers:
            candidate = f"{n} {processes(data_of(group[0]))} ({feed_of(group[0])})"
            yield from compared(candidate, "none", against(group, fed(view), n_workers=0))


def copying(view: View[Case]) -> Iterator[Conclusion]:
    """Pinned memory, alone and with copies that do not block, against pageable memory."""
    for name in ("pinned", "pinned, non-blocking"):
        chosen = [each for each in fed(view) if way(data_of(each)) == name]
        pairs = against(chosen, fed(view), pin_memory=False, non_blocking=False)
        yield from compared(f"{name} copies", "pageable ones", pairs)


def best(view: View[Case]) -> Iterator[Conclusion]:
    """The quickest way to feed each step, against no feeding at all."""
    for group in values.groups(fed(view), feed_of):
        timed = [(each.mean_s.estimate, each) for each in group if each.mean_s and each.ratio]
        pairs = [least(of)[1].ratio for of in values.groups(timed, lambda each: place(each[1]))]
        absent = not_timed(each for each in group if each.mean_s is None)
        among = f"the quickest of the loaders{' timed' if absent else ''} ({feed_of(group[0])})"
        yield from compared(among, "resident tokens", [each for each in pairs if each], absent)


def against(chosen: Iterable[Step], others: Iterable[Step], **changes: object) -> list[Ratio]:
    """Each step over the one whose data differ in the changes alone."""
    by_case = {each.point.case: each for each in others}
    found = []
    for each in chosen:
        data = msgspec.structs.replace(data_of(each), **changes)
        base = by_case.get(with_work(each.point.case, data=data))
        found.append(None if base is None else each.over(base))
    return [each for each in found if each is not None]


def compared(
    candidate: str, base: str, pairs: Sequence[Ratio], absent: str = ""
) -> Iterator[Conclusion]:
    """The gain, its range, and in how many cases it is told apart from none."""
    if not pairs:
        return
    told = Sentence()
    if len(pairs) == 1:
        (only,) = pairs
        speed, within = ends_of(told, "speed-up", only, only.speed)
        sure = "" if only.is_told_apart else ", not told apart"
        yield from told.end(
            f"With {candidate} steps run at {speed} the speed that they have with {base} ({within}){sure}"
            f"{absent}."
        )
        return
    behind = [each for pair in pairs for each in pair.sources]
    speeds = [pair.speed.estimate for pair in pairs]
    apart = [pair.speed.estimate > 1 for pair in pairs if pair.is_told_apart]
    mean = told("speed-up, geometric mean", geometric_mean(speeds), "ratio", *behind)
    low = told("least speed-up", min(speeds), "ratio", *behind)
    high = told("largest speed-up", max(speeds), "ratio", *behind)
    yield from told.end(
        f"With {candidate} steps run at {mean} the speed that they have with {base} (by case {low} to "
        f"{high}); of {told.count('cases', len(pairs), behind)} cases "
        f"{told.count('cases that gain', sum(apart), behind)} are faster, "
        f"{told.count('cases that lose', len(apart) - sum(apart), behind)} slower and "
        f"{told.count('cases not told apart', len(pairs) - len(apart), behind)} not told apart, by intervals"
        f"{min(pairs, key=lambda each: each.n_turns).within}{absent}."
    )


def samplers(view: View[Case]) -> Iterator[Conclusion]:
    """What ranks read of one another's."""
    for step in ranked(view):
        told, data, read = Sentence(), data_of(step), feeding(step)
        assert read is not None
        numbers = {"ranks": data.n_ranks, "read": read.n_rank_sequences}
        numbers |= {"sequences": read.n_sequences, "shared": read.n_shared_sequences}
        ranks, own, all_of, shared = (
            told(name, n, "count", step.measurement) for name, n in numbers.items()
        )
        yield from told.end(
            f"Of {ranks} ranks {'with a sampler for each' if data.sampler == 'per-rank' else 'without one'}, "
            f"rank 0 reads {own} of {all_of} sequences in an epoch, of which another reads {shared} too."
        )


def notes(view: View[Case]) -> Iterator[str]:
    """How waits and intervals are to be read, and what was left out."""
    yield (
        "The host waits until the loader hands over a step's batches. A GPU with earlier work in "
        "its queue need not wait with it: its idle time lies between two events around that wait. "
        "A CPU computes nothing meanwhile, so the host's wait is its own."
    )
    yield (
        f"Fed and resident steps are measured in {TURNS} turns, every second one backwards; a ratio is "
        "that of the pairs, one a turn. Step times are means, for workers hand over batches in bursts. "
        "Their intervals are between turns; of one turn they are from the means of its ten stretches, "
        "which know nothing of what differs from process to process. Memory of the workers is not "
        "counted."
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
    same = values.groups(
        fed(view), lambda each: (with_work(each.point.case, data=None), *by_workers(each))
    )
    for group in same:
        yield from [each for each in group if feeding(each) is not None][:1]


def curve(view: View[Case]) -> Iterator[Plot]:
    """The share of the step spent waiting by workers, at the shortest sequence: where steps are quickest."""
    shortest = min((each.point.case.workload.seq_len for each in fed(view)), default=0)
    return plot(
        f"Waiting for data, sequence {shortest}",
        Value("loader workers", "count", lambda step: data_of(step).n_workers),
        Value("share of the step", "share", waited_share),
        lambda step: (
            f"{step.point.case.model.name}, {data_of(step).tokenise.replace('-', ' ')}, "
            f"{way(data_of(step))}"
        ),
        lambda view: (each for each in fed(view) if each.point.case.workload.seq_len == shortest),
    )(view)


def read(name: str, unit: Unit, field: str) -> Value:
    """A field of what feeding took."""
    return Value(name, unit, lambda step: getattr(feeding(step), field))


SIZE = (
    values.SIZE[0],
    text("workload", lambda step: workload(with_work(step.point.case, data=None).workload)),
)
MEAN = (
    *ends(("mean step", "from", "to"), "s", lambda step: step.mean_s),
    Value(
        "throughput",
        "tokens_per_s",
        lambda step: (
            step.mean_s and step.point.case.workload.tokens_per_step / step.mean_s.estimate
        ),
    ),
)
STUDY = Study(
    title="When does loading text hold up a step?",
    points=points,
    tables=(
        table("The same steps on resident tokens", (*SIZE, STATUS, *MEAN, VERDICT), resident),
        table(
            "Train steps fed by a loader",
            (
                *SIZE,
                text("text", feed_of),
                Value("workers", "count", lambda step: data_of(step).n_workers),
                text("copies", lambda step: way(data_of(step))),
                STATUS,
                *MEAN,
                *ends(
                    ("over resident", "low", "high"),
                    "ratio",
                    lambda step: step.ratio and step.ratio.time,
                ),
                Value("turns", "count", lambda step: step.ratio and step.ratio.n_turns),
                Value("host waits", "s", host_waits_s),
                Value("host copies", "s", lambda step: mean_of(step, lambda each: each.copy_s)),
                Value("GPU idle", "s", lambda step: mean_of(step, lambda each: each.idle_s)),
                Value("waiting, of the step", "share", waited_share),
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
                label("text", feed_of),
                text("model", lambda step: step.point.case.name),
                Value("sequence", "count", SEQ_LEN.get),
                Value("workers", "count", lambda step: data_of(step).n_workers),
                read("size", "bytes", "text_bytes"),
                read("tokens", "count", "n_tokens"),
                read("vocabulary", "count", "vocab_size"),
                read("sequences", "count", "n_sequences"),
                read("first batch", "s", "first_wait_s"),
            ),
            texts,
        ),
        table(
            "Samplers of several ranks, over an epoch of rank 0",
            (
                text("sampler", lambda step: data_of(step).sampler),
                Value("ranks", "count", lambda step: data_of(step).n_ranks),
                read("sequences", "count", "n_sequences"),
                read("rank 0 reads", "count", "n_rank_sequences"),
                read("also read by another", "count", "n_shared_sequences"),
            ),
            ranked,
            note="One rank ran; what the others read follows from the seed.",
        ),
    ),
    plots=(curve,),
    claims=(waits, rates, workers, copying, best, noise, samplers),
    notes=notes,
)
