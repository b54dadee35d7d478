"""What the numbers of `data-loading` say."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import geometric_mean

import msgspec

from peakward.records.measurement import Interval
from peakward.records.study import Conclusion, Evidence
from peakward.report.cases import feed
from peakward.studies.cases import place
from peakward.studies.data_loading.grid import (
    NON_BLOCKING,
    PAGEABLE,
    PINNED,
    Cell,
    Ratio,
    over,
    resident,
)
from peakward.studies.data_loading.tables import way
from peakward.studies.parts import evidence, say
from peakward.studies.rivals import Rival, not_timed

BOTTLENECK = 0.05
"""Of the step spent waiting: from here on the loader is called the bottleneck."""


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
        ratios = [found for each in group if (found := each.over_resident) is not None]
        if ratios:
            slowest = max(ratios, key=lambda each: each.time.estimate)
            text += f", and steps take {'up to ' if len(group) > 1 else ''}"
            text += "{over} their time on resident tokens ({low} to {high}{within}"
            text += ")" if slowest.is_told_apart else ": not told apart)"
            fields |= _ends(slowest, slowest.time, "over resident", "over", "low", "high")
        yield say(text + ".", **fields)


def noise(cells: Sequence[Cell]) -> Iterator[Conclusion]:
    """How many fed steps come out faster than resident ones: feeding takes no time away, so that so much is
    the host's."""
    known = [found for each in cells if (found := each.over_resident) is not None]
    faster = [each for each in known if each.time.high < 1]
    if not faster:
        return
    sources = [source for each in known for source in each.sources]
    least = min(faster, key=lambda each: each.time.estimate)
    yield say(
        "In {n} of {all} cases fed steps come out faster than resident ones, in one at {least} of their time "
        "({low} to {high}{within}). No loader makes a step faster: so much is this host's noise, and a "
        "smaller difference between two cases may be noise as well.",
        n=evidence("fed steps that come out faster", len(faster), "count", *sources),
        all=evidence("cases", len(known), "count", *sources),
        **_ends(least, least.time, "over resident", "least", "low", "high"),
    )


def rates(cells: Sequence[Cell]) -> Iterator[Conclusion]:
    """What one process makes, against what the quickest step takes: the crossover without workers."""
    known = [each for each in cells if each.made_per_s is not None and each.base_s is not None]
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
    timed = [each for each in cells if each.over_resident is not None]
    for group in _groups(timed, lambda each: (feed(each.data),)):
        quickest = [
            min(of, key=lambda each: each.step_s.estimate if each.step_s else 0.0)
            for of in _groups(group, lambda each: (resident(each.case),))
        ]
        pairs = [found for each in quickest if (found := each.over_resident) is not None]
        absent = not_timed(
            Rival(name=_loader(each), measurement=each.measurement)
            for each in cells
            if feed(each.data) == feed(group[0].data) and each.step_s is None
        )
        among = "the quickest of the loaders timed" if absent else "the quickest of the loaders"
        named = f"{among} ({feed(group[0].data)})"
        yield from _compared(named, "resident tokens", pairs, absent)


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


def _compared(
    candidate: str, base: str, pairs: Sequence[Ratio], absent: str = ""
) -> Iterator[Conclusion]:
    """The gain, its range, and in how many cases it is told apart from none."""
    if not pairs:
        return
    names = {"candidate": candidate, "base": base, "absent": absent}
    if len(pairs) == 1:
        (only,) = pairs
        sure = "" if only.is_told_apart else ", not told apart"
        yield say(
            "With {candidate} steps run at {one} the speed that they have with {base} ({low} to "
            f"{{high}}{{within}}){sure}{{absent}}.",
            **names,
            **_ends(only, only.speed, "speed-up", "one", "low", "high"),
        )
        return
    sources = [each for pair in pairs for each in pair.sources]
    speeds = [pair.speed.estimate for pair in pairs]
    apart = [pair for pair in pairs if pair.is_told_apart]
    n_faster = sum(pair.speed.estimate > 1 for pair in apart)

    def factor(quantity: str, value: float) -> Evidence:
        return evidence(quantity, value, "ratio", *sources)

    def count(quantity: str, n: int) -> Evidence:
        return evidence(quantity, n, "count", *sources)

    yield say(
        "With {candidate} steps run at {mean} the speed that they have with {base} (by case {least} to "
        "{most}); of {all} cases {faster} are faster, {slower} slower and {equal} not told apart, by "
        "intervals{within}{absent}.",
        **names,
        within=min(pairs, key=lambda each: each.n_turns).within,
        mean=factor("speed-up, geometric mean", geometric_mean(speeds)),
        least=factor("least speed-up", min(speeds)),
        most=factor("largest speed-up", max(speeds)),
        all=count("cases", len(pairs)),
        faster=count("cases that gain", n_faster),
        slower=count("cases that lose", len(apart) - n_faster),
        equal=count("cases not told apart", len(pairs) - len(apart)),
    )


def _ends(
    found: Ratio, interval: Interval, quantity: str, *names: str
) -> dict[str, str | Evidence]:
    """The estimate and the ends as fields of those names, and `within`."""
    values = (("", interval.estimate), (", low end", interval.low), (", high end", interval.high))
    fields: dict[str, str | Evidence] = {"within": found.within}
    for name, (end, value) in zip(names, values, strict=True):
        fields[name] = evidence(quantity + end, value, "ratio", *found.sources)
    return fields


def _against(chosen: Iterable[Cell], cells: Iterable[Cell], **changes: object) -> list[Ratio]:
    """Each beside the one whose data differ in the changes alone."""
    by_case = {each.case: each for each in cells}
    pairs = []
    for each in chosen:
        data = msgspec.structs.replace(each.data, **changes)
        work = msgspec.structs.replace(each.case.workload, data=data)
        base = by_case.get(msgspec.structs.replace(each.case, workload=work))
        if base is not None:
            pairs.append(over(each.turns, base.turns))
    return [each for each in pairs if each is not None]


def _groups(cells: Iterable[Cell], key: Callable[[Cell], tuple[object, ...]]) -> list[list[Cell]]:
    """Those of one key together, in the order in which the keys first came."""
    found: dict[tuple[object, ...], list[Cell]] = {}
    for each in cells:
        found.setdefault(key(each), []).append(each)
    return list(found.values())


def _loader(cell: Cell) -> str:
    return f"{cell.data.n_workers} {_processes([cell])} with {way(cell).replace(', ', ' ')} copies"


def _processes(group: Sequence[Cell]) -> str:
    """By the number that all of them have."""
    return "loader worker" if group[0].data.n_workers == 1 else "loader workers"


def _share(cell: Cell) -> float:
    return cell.waited_share or 0.0


def _making_share(cell: Cell) -> float:
    """The time in which one process makes a step's tokens, over the step's on resident tokens."""
    assert cell.base_s is not None and cell.made_per_s is not None
    return cell.case.workload.tokens_per_step / cell.made_per_s / cell.base_s.estimate


def _copies(cell: Cell) -> tuple[bool, bool]:
    return cell.data.pin_memory, cell.data.non_blocking
