"""What the numbers of `data-loading` say."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import geometric_mean

import msgspec

from peakward.records.measurement import Interval, Measurement
from peakward.records.study import Conclusion, Evidence
from peakward.report.cases import feed
from peakward.studies.cases import place
from peakward.studies.data_loading.grid import NON_BLOCKING, PAGEABLE, PINNED, Cell, resident
from peakward.studies.data_loading.tables import way
from peakward.studies.parts import evidence, say
from peakward.studies.readings import distinct, mean_s

BOTTLENECK = 0.05
"""Of the step spent waiting: from here on the loader is called the bottleneck."""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A step in two ways, both timed."""

    base_s: Interval
    candidate_s: Interval
    sources: tuple[Measurement | None, ...]

    @property
    def factor(self) -> float:
        """Of speed: above 1 the candidate is faster."""
        return self.base_s.estimate / self.candidate_s.estimate


def waits(cells: Sequence[Cell]) -> Iterator[Conclusion]:
    """For each way to tokenise and number of workers, with plain copies: how long the device waits, and
    what the step takes in all."""
    known = [each for each in cells if each.waited_share is not None and _copies(each) == PAGEABLE]
    for group in _groups(known, lambda each: (feed(each.data), each.data.n_workers)):
        least, most = min(group, key=_share), max(group, key=_share)
        starved = [each for each in group if _share(each) > BOTTLENECK]
        sources = [each.measurement for each in group]
        fields: dict[str, str | Evidence] = {
            "feed": feed(group[0].data),
            "workers": evidence("workers", group[0].data.n_workers, "count", *sources),
            "processes": _processes(group),
            "most": evidence("largest share", _share(most), "share", most.measurement),
            "where": place(resident(most.case)),
            "limit": evidence("limit", BOTTLENECK, "share", *sources),
            "starved": evidence("cases held up", len(starved), "count", *sources),
            "all": evidence("cases", len(group), "count", *sources),
        }
        text = "{feed}, {workers} {processes}: the device waits {most} of a step for data ({where})"
        if len(group) > 1:
            text += ", at least {least}"
            fields["least"] = evidence("least share", _share(least), "share", least.measurement)
        text += "; the loader is the bottleneck, above {limit}, in {starved} of {all}"
        slowest = max(group, key=lambda each: each.over_resident or 0.0)
        if slowest.over_resident is not None:
            text += f", and steps take {'up to ' if len(group) > 1 else ''}"
            text += "{over} their time on resident tokens"
            both = (slowest.measurement, slowest.base)
            fields["over"] = evidence("over resident", slowest.over_resident, "ratio", *both)
        yield say(text + ".", **fields)


def rates(cells: Sequence[Cell]) -> Iterator[Conclusion]:
    """What one process makes, against what the quickest step takes: the crossover without workers."""
    known = [each for each in cells if each.made_per_s is not None and mean_s(each.base)]
    for group in _groups(known, lambda each: (feed(each.data),)):
        tightest = max(group, key=_making_share)
        share = _making_share(tightest)
        yield say(
            "{feed}: one process makes {made}, so that the tokens of {where} cost it {share} of what "
            "that step takes on resident tokens"
            + (": more than it can make meanwhile." if share > 1 else "."),
            feed=feed(tightest.data),
            made=evidence(
                "tokens made", tightest.made_per_s or 0.0, "tokens_per_s", tightest.measurement
            ),
            where=place(resident(tightest.case)),
            share=evidence(
                "making over the step", share, "ratio", tightest.measurement, tightest.base
            ),
        )


def workers(cells: Sequence[Cell]) -> Iterator[Conclusion]:
    """Each number of workers against none, copies being the same."""
    for group in _groups(cells, lambda each: (feed(each.data), each.data.n_workers)):
        n = group[0].data.n_workers
        if n:
            pairs = _against(group, cells, n_workers=0)
            yield from _compared(f"{n} {_processes(group)} ({feed(group[0].data)})", "none", pairs)


def copies(cells: Sequence[Cell]) -> Iterator[Conclusion]:
    """Pinned memory, alone and with copies that do not block, against pageable memory."""
    for wanted in (PINNED, NON_BLOCKING):
        chosen = [each for each in cells if _copies(each) == wanted]
        if chosen:
            pairs = _against(chosen, cells, pin_memory=False, non_blocking=False)
            yield from _compared(f"{way(chosen[0])} copies", "pageable ones", pairs)


def best(cells: Sequence[Cell]) -> Iterator[Conclusion]:
    """The quickest way to feed each step, against no feeding at all."""
    timed = [each for each in cells if each.step_s is not None and mean_s(each.base) is not None]
    for group in _groups(timed, lambda each: (feed(each.data),)):
        quickest = [
            min(of, key=lambda each: each.step_s.estimate if each.step_s else 0.0)
            for of in _groups(group, lambda each: (resident(each.case),))
        ]
        pairs = [_pair(each, mean_s(each.base), each.base) for each in quickest]
        named = f"the quickest of the loaders ({feed(group[0].data)})"
        yield from _compared(named, "resident tokens", [each for each in pairs if each])


def samplers(cells: Sequence[Cell]) -> Iterator[Conclusion]:
    """What ranks read of one another's."""
    for cell in cells:
        feeding = cell.feeding
        if feeding is not None:
            yield say(
                "Of {ranks} ranks "
                + ("with a sampler for each" if cell.data.sampler == "per-rank" else "without one")
                + ", rank 0 reads {own} of {all} sequences in an epoch, of which another reads "
                "{shared} too.",
                ranks=evidence("ranks", cell.data.n_ranks, "count", cell.measurement),
                own=evidence("read", feeding.n_rank_sequences, "count", cell.measurement),
                all=evidence("sequences", feeding.n_sequences, "count", cell.measurement),
                shared=evidence("shared", feeding.n_shared_sequences, "count", cell.measurement),
            )


def _compared(candidate: str, base: str, pairs: Sequence[Pair]) -> Iterator[Conclusion]:
    """The gain, its range, and in how many cases it is sure."""
    if not pairs:
        return
    sources = [each for pair in pairs for each in pair.sources]
    factors = [pair.factor for pair in pairs]
    apart = [pair for pair in pairs if distinct(pair.base_s, pair.candidate_s)]
    names = {"candidate": candidate, "base": base}

    def factor(quantity: str, value: float) -> Evidence:
        return evidence(quantity, value, "ratio", *sources)

    def count(quantity: str, n: int) -> Evidence:
        return evidence(quantity, n, "count", *sources)

    if len(pairs) == 1:
        sure = "their intervals apart" if apart else "within their intervals"
        text = f"With {{candidate}} steps run at {{one}} the speed that they have with {{base}}, {sure}."
        yield say(text, **names, one=factor("speed-up", factors[0]))
        return
    n_faster = sum(pair.factor > 1 for pair in apart)
    yield say(
        "With {candidate} steps run at {mean} the speed that they have with {base} (by case {least} to "
        "{most}); of {all} cases {faster} are faster and {slower} slower, their intervals apart.",
        **names,
        mean=factor("speed-up, geometric mean", geometric_mean(factors)),
        least=factor("least speed-up", min(factors)),
        most=factor("largest speed-up", max(factors)),
        all=count("cases", len(pairs)),
        faster=count("cases that gain", n_faster),
        slower=count("cases that lose", len(apart) - n_faster),
    )


def _against(chosen: Iterable[Cell], cells: Iterable[Cell], **changes: object) -> list[Pair]:
    """Each beside the one whose data differ in the changes alone."""
    by_case = {each.case: each for each in cells}
    pairs = []
    for each in chosen:
        data = msgspec.structs.replace(each.data, **changes)
        work = msgspec.structs.replace(each.case.workload, data=data)
        base = by_case.get(msgspec.structs.replace(each.case, workload=work))
        if base is not None:
            pairs.append(_pair(each, base.step_s, base.measurement))
    return [each for each in pairs if each is not None]


def _pair(cell: Cell, base_s: Interval | None, base: Measurement | None) -> Pair | None:
    if base_s is None or cell.step_s is None:
        return None
    return Pair(base_s=base_s, candidate_s=cell.step_s, sources=(base, cell.measurement))


def _groups(cells: Iterable[Cell], key: Callable[[Cell], tuple[object, ...]]) -> list[list[Cell]]:
    """Those of one key together, in the order in which the keys first came."""
    found: dict[tuple[object, ...], list[Cell]] = {}
    for each in cells:
        found.setdefault(key(each), []).append(each)
    return list(found.values())


def _processes(group: Sequence[Cell]) -> str:
    """By the number that all of them have."""
    return "loader worker" if group[0].data.n_workers == 1 else "loader workers"


def _share(cell: Cell) -> float:
    return cell.waited_share or 0.0


def _making_share(cell: Cell) -> float:
    """The time in which one process makes a step's tokens, over the step's on resident tokens."""
    base = mean_s(cell.base)
    assert base is not None and cell.made_per_s is not None
    return cell.case.workload.tokens_per_step / cell.made_per_s / base.estimate


def _copies(cell: Cell) -> tuple[bool, bool]:
    return cell.data.pin_memory, cell.data.non_blocking
