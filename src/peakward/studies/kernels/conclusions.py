"""What the numbers of `kernels` say."""

from collections.abc import Sequence

from peakward.records.profile import CaseProfile
from peakward.records.study import Conclusion, Evidence
from peakward.studies.cases import place
from peakward.studies.kernels.grid import Both, Cell, pairs
from peakward.studies.kernels.shares import MATMUL, PASSES_BOTH, category_ns, share_of, work_ns
from peakward.studies.kernels.top import longest
from peakward.studies.parts import evidence, say
from peakward.studies.readings import ratio


def matmuls(cells: Sequence[Cell], work: str) -> tuple[Conclusion, ...]:
    """How much of the time is matmuls, for each size at its longest sequence."""
    last = {both.case.model.name: both for both in pairs(cells)}
    return tuple(said for both in last.values() for said in _matmuls(both, work))


def _matmuls(both: Both, work: str) -> tuple[Conclusion, ...]:
    inference, training = both.inference.profile, both.training.profile
    shares = {
        "inference": (share_of(MATMUL, inference), both.inference),
        "passes": (share_of(MATMUL, training, PASSES_BOTH), both.training),
        "step": (share_of(MATMUL, training), both.training),
    }
    known = {
        name: evidence(f"share of matmuls, {name}", share, "share", source)
        for name, (share, source) in shares.items()
        if share is not None
    }
    if len(known) < len(shares):
        return ()
    shape = both.case
    return (
        say(
            "Matmuls take {inference} of {work} time in inference, {passes} in forward and "
            "backward, and {step} in a whole training step of {size}.",
            work=work,
            size=f"{shape.model.name} {shape.workload.batch_size} × {shape.workload.seq_len}",
            **known,
        ),
    )


def spread(cells: Sequence[Cell], work: str) -> tuple[Conclusion, ...]:
    """Where matmuls take least and most, over every case that was profiled."""
    known = [
        (share, cell.profile, place(cell.case))
        for cell in cells
        if cell.profile is not None
        and (share := share_of(MATMUL, cell.profile.profile)) is not None
    ]
    if len(known) < 2:
        return ()
    least, most = min(known, key=_share), max(known, key=_share)
    return (
        say(
            "Over {n} cases matmuls take from {least} of {work} time ({where_least}) to {most} "
            "({where_most}).",
            n=evidence("cases", len(known), "count", *(source for _, source, _ in known)),
            work=work,
            least=evidence("least share of matmuls", least[0], "share", least[1]),
            where_least=least[2],
            most=evidence("largest share of matmuls", most[0], "share", most[1]),
            where_most=most[2],
        ),
    )


def _share(known: tuple[float, CaseProfile, str]) -> float:
    return known[0]


def after_matmuls(cells: Sequence[Cell], work: str) -> tuple[Conclusion, ...]:
    """What takes most beside matmuls, in each of these cases: a category, and one kernel of a phase."""
    return tuple(
        said
        for cell in cells
        if cell.profile is not None
        for said in _after_matmuls(cell, cell.profile, work)
    )


def _after_matmuls(cell: Cell, found: CaseProfile, work: str) -> tuple[Conclusion, ...]:
    others = {name: ns for name, ns in category_ns(found.profile).items() if name != MATMUL}
    kernel = longest(found, lambda each: each.category != MATMUL)
    if not others or kernel is None:
        return ()
    category, whole_ns = next(iter(others)), work_ns(found.profile)
    return (
        say(
            "Beside matmuls most of {place} goes to {category} {work}s, {share}; the one that takes "
            "most is {name}{phase}: {kernel_share} in {n} instances over {steps} steps.",
            place=place(cell.case),
            category=category,
            work=work,
            share=_of(f"share of {category}", others[category], whole_ns, found),
            name=kernel.name,
            phase=f" in the phase {kernel.phase}" if kernel.phase else "",
            kernel_share=_of(f"share of {kernel.name}", kernel.total_ns, whole_ns, found),
            n=evidence("instances", kernel.n, "count", found),
            steps=evidence("profiled steps", found.n_steps, "count", found),
        ),
    )


def _of(quantity: str, part_ns: int, whole_ns: int, found: CaseProfile) -> Evidence:
    return evidence(quantity, ratio(part_ns, whole_ns) or 0.0, "share", found)


def profiling(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """What the profiler cost: the least and the most."""
    known = [(over, cell) for cell in cells if (over := cell.over_plain) is not None]
    if not known:
        return ()
    least, most = (pick(known, key=lambda each: each[0]) for pick in (min, max))
    return (
        say(
            "Under the profiler a step takes from {least} ({where_least}) to {most} ({where_most}) "
            "of its time by the plain timer.",
            least=_cost("least", *least),
            where_least=place(least[1].case),
            most=_cost("most", *most),
            where_most=place(most[1].case),
        ),
    )


def _cost(which: str, over: float, cell: Cell) -> Evidence:
    quantity = f"profiled over plain step, {which}"
    return evidence(quantity, over, "ratio", cell.measurement, cell.profile)
