"""What `roofline` says of each step: what bounds it, where it loses, how well it was foretold."""

from collections.abc import Iterator, Sequence

from peakward.records.calibration import Calibration
from peakward.records.study import Conclusion, Evidence
from peakward.studies.parts import evidence, say
from peakward.studies.readings import ratio
from peakward.studies.roofline.cells import Cell, largest, profiled
from peakward.studies.roofline.places import Place
from peakward.studies.roofline.sums import floor_s, placed_s, side_s


def sides(cells: Sequence[Cell], of: Calibration | None) -> Iterator[Conclusion]:
    """Which share of the time is bound by what, and how near the whole is to the roof."""
    for cell in largest(cells):
        right = ratio(side_s(cell, "compute"), placed_s(cell))
        near, found = ratio(floor_s(cell), placed_s(cell)), cell.profile
        if right is None or near is None or cell.ridge is None:
            continue
        yield say(
            "In {name}, {right} of the operators' time is right of the ridge at {ridge} "
            "operations/byte{compute}, the rest left of it{memory}; their least times sum to {near} "
            "of what they took.",
            name=cell.name,
            right=evidence("share right of the ridge", right, "share", found, of),
            ridge=evidence("ridge", cell.ridge, "count", found, of),
            compute=_named(cell, "compute"),
            memory=_named(cell, "memory"),
            near=evidence("share of the roof", near, "share", found, of),
        )


def _named(cell: Cell, bound: str) -> str:
    names = [each.kind for each in cell.places if each.bound == bound and each.measured_s]
    return f" ({', '.join(names)})" if names else ""


def farthest(cells: Sequence[Cell], of: Calibration | None) -> Iterator[Conclusion]:
    """The kind that would give most time back at the roof."""
    for cell in largest(cells):
        lost = [(_lost_s(each), each) for each in cell.places if _lost_s(each) > 0]
        if not lost:
            continue
        lost_s, place = max(lost, key=lambda each: each[0])
        yield say(
            "Most is lost in {name} by {kind}: {share} of the roof, {lost} a step above it.",
            name=cell.name,
            kind=f"the layer {place.kind}" if place.is_layer else place.kind,
            share=roof_share(place, cell, of),
            lost=evidence(f"time of {place.kind} above the roof", lost_s, "s", cell.profile, of),
        )


def _lost_s(place: Place) -> float:
    if place.measured_s is None or place.floor_s is None:
        return 0.0
    return place.measured_s - place.floor_s


def predictions(cells: Sequence[Cell], of: Calibration | None) -> Iterator[Conclusion]:
    """How far off the predicted times of the operators are, over all cases."""
    known = [
        (over, each, cell)
        for cell in profiled(cells)
        for each in cell.places
        if (over := each.over_predicted) is not None
    ]
    if not known:
        return
    sources = [cell.profile for _, _, cell in known]
    measured_s = sum(each.measured_s or 0.0 for _, each, _ in known)
    predicted_s = sum(each.predicted_s or 0.0 for _, each, _ in known)
    least, most = (pick(known, key=lambda each: each[0]) for pick in (min, max))
    yield say(
        "Over {n} places the operators took {whole} of their predicted time in sum, from {least} "
        "({where_least}) to {most} ({where_most}).",
        n=evidence("places with a prediction", len(known), "count", *sources, of),
        whole=evidence("measured over predicted", measured_s / predicted_s, "ratio", *sources, of),
        least=evidence("least over predicted", least[0], "ratio", least[2].profile, of),
        where_least=f"{least[1].kind}; {least[2].name}",
        most=evidence("most over predicted", most[0], "ratio", most[2].profile, of),
        where_most=f"{most[1].kind}; {most[2].name}",
    )


def roof_share(place: Place, cell: Cell, of: Calibration | None) -> Evidence:
    """Its share of the roof, which must be known."""
    assert place.roof_share is not None
    quantity = f"share of the roof of {place.kind}, {cell.name}"
    return evidence(quantity, place.roof_share, "share", cell.profile, of)
