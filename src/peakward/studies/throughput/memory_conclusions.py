"""What the numbers of `throughput` say of what trains under a memory limit."""

from collections.abc import Sequence

from peakward.prediction.parameters import n_parameters
from peakward.records.case import Precision
from peakward.records.study import Conclusion
from peakward.studies.cases import place
from peakward.studies.parts import evidence, say
from peakward.studies.peaks import peak_categories, phase_of
from peakward.studies.readings import median_s, peak_bytes, ratio
from peakward.studies.throughput.limits import ADDED, Row
from peakward.studies.throughput.speed import BASE


def boundaries(rows: Sequence[Row], limits: Sequence[int]) -> tuple[Conclusion, ...]:
    """Under each limit, how many sizes each precision trains, and which only a lower one does."""
    bare = [row for row in rows if row.way.added is None]
    said = (_boundary(bare, i, limit) for i, limit in enumerate(limits))
    return tuple(each for each in said if each is not None)


def _boundary(bare: Sequence[Row], i: int, limit: int) -> Conclusion | None:
    known = {
        precision: [
            (row.way.case.model.name, fit)
            for row in bare
            if row.way.precision == precision
            and (fit := row.fits[i]) is not None
            and fit.verdict in ("fits", "oom")
        ]
        for precision in dict.fromkeys(row.way.precision for row in bare)
    }
    told = {precision: of for precision, of in known.items() if of}
    if not told:
        return None
    not_in_base = {name for name, fit in known.get(BASE, []) if fit.verdict == "oom"}
    texts, fields = [], {}
    for precision, of in told.items():
        only = [name for name, fit in of if fit.verdict == "fits" and name in not_in_base]
        field = precision.replace("-", "_")
        texts.append(
            f"{precision} {{n_{field}}} of {{all_{field}}}"
            + (f" ({', '.join(only)} not in {BASE})" if only else "")
        )
        proofs = [fit.proof for _, fit in of]
        n_fit = sum(fit.verdict == "fits" for _, fit in of)
        fields[f"n_{field}"] = evidence(f"sizes in {precision}", n_fit, "count", *proofs)
        fields[f"all_{field}"] = evidence("sizes known", len(of), "count", *proofs)
    everything = [fit.proof for of in told.values() for _, fit in of]
    return say(
        "Sizes that train under {limit}: " + "; ".join(texts) + ".",
        limit=evidence("memory limit", limit, "bytes", *everything),
        **fields,
    )


def precisions(rows: Sequence[Row], limits: Sequence[int]) -> tuple[Conclusion, ...]:
    """What each lower precision takes of fp32's peak memory and for what, and how many more sizes it
    trains: mixed precision keeps the states in fp32, and they are what it does not shrink."""
    bare = [row for row in rows if row.way.added is None]
    base = {row.way.case.model: row for row in bare if row.way.precision == BASE}
    said: list[Conclusion] = []
    for precision in dict.fromkeys(row.way.precision for row in bare if row.way.precision != BASE):
        pairs = [
            (row, base[row.way.case.model])
            for row in bare
            if row.way.precision == precision and row.way.case.model in base
        ]
        said += (*_peaks(precision, pairs), *_moved(precision, pairs, limits))
    return tuple(said)


def _peaks(precision: Precision, pairs: Sequence[tuple[Row, Row]]) -> tuple[Conclusion, ...]:
    """By size where both ran without a limit; of the largest of them, by category."""
    known = [
        (lower, base, own, full)
        for lower, base in pairs
        if (own := peak_bytes(lower.free)) is not None
        and (full := peak_bytes(base.free)) is not None
    ]
    if not known:
        return ()
    texts, fields = [], {}
    for i, (lower, base, own, full) in enumerate(known):
        where, both = place(lower.way.case), (lower.free, base.free)
        texts.append(f"{where} {{own{i}}} against {{full{i}}} ({{share{i}}})")
        fields[f"own{i}"] = evidence(f"peak, {where}", own, "bytes", lower.free)
        fields[f"full{i}"] = evidence(f"{BASE}'s peak, {where}", full, "bytes", base.free)
        fields[f"share{i}"] = evidence(f"peak over {BASE}'s, {where}", own / full, "share", *both)
    said = say(
        "Peak memory of {precision} against {base}: " + "; ".join(texts) + ".",
        precision=precision,
        base=BASE,
        **fields,
    )
    lower, base, *_ = max(known, key=lambda each: n_parameters(each[0].way.case.model))
    return (said, *_by_category(lower, base))


def _by_category(lower: Row, base: Row) -> tuple[Conclusion, ...]:
    """Of predictions, where they are of the measured peaks."""
    own, full = peak_categories(lower.way.case), peak_categories(base.way.case)
    if own is None or full is None or None in (phase_of(lower.free), phase_of(base.free)):
        return ()
    texts, fields = [], {}
    for i, name in enumerate(each for each in own if own[each] or full[each]):
        texts.append(f"{name} {{own{i}}} against {{full{i}}}")
        fields[f"own{i}"] = evidence(f"{name}, {lower.way.name}", own[name], "bytes", lower.free)
        fields[f"full{i}"] = evidence(f"{name}, {base.way.name}", full[name], "bytes", base.free)
    return (
        say(
            "At its peak {place} holds in {precision} against {base}, as predicted by category: "
            + "; ".join(texts)
            + ".",
            place=place(lower.way.case),
            precision=lower.way.name,
            base=BASE,
            **fields,
        ),
    )


def _moved(
    precision: Precision, pairs: Sequence[tuple[Row, Row]], limits: Sequence[int]
) -> tuple[Conclusion, ...]:
    """Over the pairs of a size and a limit of which both precisions are known."""
    known = [
        (own, full)
        for lower, base in pairs
        for i in range(len(limits))
        if (own := lower.fits[i]) is not None
        and (full := base.fits[i]) is not None
        and {own.verdict, full.verdict} <= {"fits", "oom"}
    ]
    if not known:
        return ()
    proofs = [each.proof for both in known for each in both]
    gained, lost = (
        sum((own.verdict, full.verdict) == verdicts for own, full in known)
        for verdicts in (("fits", "oom"), ("oom", "fits"))
    )
    return (
        say(
            f"Of {{n}} {'pair' if len(known) == 1 else 'pairs'} of a size and a memory limit, "
            "{precision} trains {gained} that {base} does not, "
            "and {base} {lost} that {precision} does not.",
            n=evidence("pairs of a size and a limit", len(known), "count", *proofs),
            gained=evidence(f"train in {precision} alone", gained, "count", *proofs),
            lost=evidence(f"train in {BASE} alone", lost, "count", *proofs),
            precision=precision,
            base=BASE,
        ),
    )


def additions(rows: Sequence[Row], limits: Sequence[int]) -> tuple[Conclusion, ...]:
    """What each memory-saving lever lets train that its precision alone cannot, and what it costs."""
    said: list[Conclusion] = []
    for precision in dict.fromkeys(row.way.precision for row in rows if row.way.added):
        plain = [r for r in rows if r.way.precision == precision and r.way.added is None]
        for added in ADDED:
            wanted = [r for r in rows if r.way.precision == precision and r.way.added == added]
            for i, limit in enumerate(limits):
                said += _unlocked(plain, wanted, i, limit)
            said += _price(wanted)
    return tuple(said)


def _unlocked(
    plain: Sequence[Row], wanted: Sequence[Row], i: int, limit: int
) -> tuple[Conclusion, ...]:
    alone = {row.way.case.model: row.fits[i] for row in plain}
    found = [
        (row, without, fit)
        for row in wanted
        if (fit := row.fits[i]) is not None
        and (without := alone.get(row.way.case.model)) is not None
        and (without.verdict, fit.verdict) == ("oom", "fits")
    ]
    if not found:
        return ()
    proof = [each.proof for _, without, fit in found for each in (without, fit)]
    way = found[0][0].way
    return (
        say(
            "Under {limit}, {way} trains {models}, which {precision} alone cannot.",
            limit=evidence("memory limit", limit, "bytes", *proof),
            way=way.name,
            models=", ".join(row.way.case.model.name for row, *_ in found),
            precision=way.precision,
        ),
    )


def _price(wanted: Sequence[Row]) -> tuple[Conclusion, ...]:
    """Peak memory and time over the precision's own, by size, where both ran without a limit."""
    known = [
        (row, share, slower)
        for row in wanted
        if (share := ratio(peak_bytes(row.free), peak_bytes(row.plain))) is not None
        and (slower := ratio(median_s(row.free), median_s(row.plain))) is not None
    ]
    if not known:
        return ()
    texts, fields = [], {}
    for i, (row, share, slower) in enumerate(known):
        model = row.way.case.model.name
        texts.append(f"{{share{i}}} of the peak memory in {{time{i}}} the time for {model}")
        both = (row.free, row.plain)
        fields[f"share{i}"] = evidence(f"peak memory, {model}", share, "share", *both)
        fields[f"time{i}"] = evidence(f"time, {model}", slower, "ratio", *both)
    way = known[0][0].way
    return (
        say(
            "{way} against {precision} alone: " + "; ".join(texts) + ".",
            way=way.name,
            precision=way.precision,
            **fields,
        ),
    )
