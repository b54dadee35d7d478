"""What the numbers of `throughput` say."""

from collections.abc import Sequence

from peakward.predict.parameters import n_parameters
from peakward.records.case import Precision
from peakward.records.study import Conclusion
from peakward.studies.fits import Fit
from peakward.studies.parts import evidence, say
from peakward.studies.power_law import exponent
from peakward.studies.readings import median_s, peak_bytes
from peakward.studies.speedup import Speedup, gains
from peakward.studies.throughput.limits import ADDED, Row
from peakward.studies.throughput.speed import BASE, PASSES, Cell


def speed(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """What each lower precision gains in each pass, then how time grows with the sequence."""
    said: list[Conclusion] = []
    for pass_ in PASSES:
        for precision in _lower(cells):
            wanted = [cell.speedup for cell in cells if _is(cell, precision, pass_)]
            said += gains(wanted, f"{precision} {pass_}", BASE)
    return (*said, *_growth(cells))


def _lower(cells: Sequence[Cell]) -> tuple[Precision, ...]:
    found = dict.fromkeys(cell.case.configuration.precision for cell in cells)
    return tuple(each for each in found if each != BASE)


def _is(cell: Cell, precision: Precision, pass_: str) -> bool:
    return cell.case.configuration.precision == precision and cell.case.workload.pass_ == pass_


def _growth(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """The exponent of the train step's time in the sequence length, of the largest size that ran."""
    said = []
    for precision in (BASE, *_lower(cells)):
        ran = [c for c in cells if _is(c, precision, PASSES[-1]) and median_s(c.measurement)]
        largest = max((n_parameters(cell.case.model) for cell in ran), default=0)
        ran = [cell for cell in ran if n_parameters(cell.case.model) == largest]
        lengths = [cell.case.workload.seq_len for cell in ran]
        power = exponent(lengths, [median_s(cell.measurement) or 0.0 for cell in ran])
        if power is not None:
            proof = [cell.measurement for cell in ran]
            said.append(
                say(
                    "In {precision} the train step of {model} grows as the sequence length to the "
                    "power {power}, fitted from {low} to {high}.",
                    precision=precision,
                    model=ran[0].case.model.name,
                    power=evidence("exponent", power, "count", *proof),
                    low=evidence("shortest sequence", min(lengths), "count", *proof),
                    high=evidence("longest sequence", max(lengths), "count", *proof),
                )
            )
    return tuple(said)


def boundaries(rows: Sequence[Row], limits: Sequence[int]) -> tuple[Conclusion, ...]:
    """Under each limit, the sizes that only a lower precision trains."""
    bare = [row for row in rows if row.way.added is None]
    lower = dict.fromkeys(row.way.precision for row in bare if row.way.precision != BASE)
    return tuple(
        conclusion
        for i, limit in enumerate(limits)
        for precision in lower
        for conclusion in _boundary(bare, i, limit, precision)
    )


def _boundary(
    bare: Sequence[Row], i: int, limit: int, precision: Precision
) -> tuple[Conclusion, ...]:
    pairs = [
        (base.way.case.model.name, base.fits[i], low.fits[i])
        for base in bare
        for low in bare
        if base.way.precision == BASE
        and low.way.precision == precision
        and base.way.case.model == low.way.case.model
    ]
    known = [(name, base, low) for name, base, low in pairs if _settled(base) and _settled(low)]
    if not known:
        return ()
    proof = [fit.proof for _, base, low in known for fit in (base, low) if fit is not None]
    base_fits = [name for name, base, _ in known if base is not None and base.verdict == "fits"]
    low_fits = [name for name, _, low in known if low is not None and low.verdict == "fits"]
    only = [name for name in low_fits if name not in base_fits]
    return (
        say(
            "Under {limit}, {base} trains {n_base} of {n} sizes and {precision} {n_low}"
            + (": {only} only in {precision}." if only else "."),
            limit=evidence("memory limit", limit, "bytes", *proof),
            base=BASE,
            precision=precision,
            n_base=evidence(f"sizes that train in {BASE}", len(base_fits), "count", *proof),
            n=evidence("sizes", len(known), "count", *proof),
            n_low=evidence(f"sizes that train in {precision}", len(low_fits), "count", *proof),
            only=", ".join(only),
        ),
    )


def additions(rows: Sequence[Row], limits: Sequence[int]) -> tuple[Conclusion, ...]:
    """What each memory-saving lever lets train that its precision alone cannot, and what it costs."""
    said: list[Conclusion] = []
    for precision in dict.fromkeys(row.way.precision for row in rows if row.way.added):
        for added in ADDED:
            wanted = [r for r in rows if r.way.precision == precision and r.way.added == added]
            if not wanted:
                continue
            for i, limit in enumerate(limits):
                said += _unlocked(rows, wanted, i, limit)
            speedups = [Speedup(base=row.plain, candidate=row.free) for row in wanted]
            said += gains(speedups, wanted[0].way.name, f"{precision} alone")
            said += _saving(wanted)
    return tuple(said)


def _unlocked(
    rows: Sequence[Row], wanted: Sequence[Row], i: int, limit: int
) -> tuple[Conclusion, ...]:
    plain = {
        row.way.case.model: row.fits[i]
        for row in rows
        if row.way.added is None and row.way.precision == wanted[0].way.precision
    }
    found = [
        (row, alone, fit)
        for row in wanted
        if (fit := row.fits[i]) is not None
        and (alone := plain.get(row.way.case.model)) is not None
        and (alone.verdict, fit.verdict) == ("oom", "fits")
    ]
    if not found:
        return ()
    proof = [each.proof for _, alone, fit in found for each in (alone, fit)]
    return (
        say(
            "Under {limit}, {way} trains {models}, which {precision} alone cannot.",
            limit=evidence("memory limit", limit, "bytes", *proof),
            way=wanted[0].way.name,
            models=", ".join(row.way.case.model.name for row, *_ in found),
            precision=wanted[0].way.precision,
        ),
    )


def _saving(wanted: Sequence[Row]) -> tuple[Conclusion, ...]:
    """Peak memory with the addition over without, where both ran without a limit."""
    said = []
    for row in wanted:
        with_it, without = peak_bytes(row.free), peak_bytes(row.plain)
        if with_it and without:
            said.append(
                say(
                    "{way} holds {share} of the peak memory of {precision} alone in {model}.",
                    way=row.way.name,
                    share=evidence(
                        "peak memory, share", with_it / without, "share", row.free, row.plain
                    ),
                    precision=row.way.precision,
                    model=row.way.case.model.name,
                )
            )
    return tuple(said)


def _settled(fit: Fit | None) -> bool:
    return fit is not None and fit.verdict in ("fits", "oom")
