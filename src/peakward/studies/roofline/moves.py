"""What moves operators on the roofline: precision, batch size and fusion."""

from collections.abc import Iterator, Sequence

from peakward.records.calibration import Calibration
from peakward.records.study import Conclusion, Evidence
from peakward.studies.parts import evidence, say
from peakward.studies.roofline.cells import Cell, largest, profiled
from peakward.studies.roofline.conclusions import roof_share
from peakward.studies.roofline.grid import EAGER
from peakward.studies.roofline.kinds import ELEMENTWISE
from peakward.studies.roofline.places import Place
from peakward.studies.roofline.sums import beside_layers_bytes, beside_layers_s, moved_bytes


def precision(cells: Sequence[Cell], of: Calibration | None) -> Iterator[Conclusion]:
    """What the other precisions do to the ridge and to the longest layer, beside the first."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in largest(cells):
        groups.setdefault((cell.case.model.name, cell.fusion.name), []).append(cell)
    for base, *others in groups.values():
        layer = _longest_layer(base)
        for other in others:
            after = None if layer is None else other.place(layer.kind)
            if layer is not None and after is not None and base.batch_size == other.batch_size:
                yield from _moved(base, other, layer, after, of)


def _longest_layer(cell: Cell) -> Place | None:
    return next((each for each in cell.places if each.is_layer and each.measured_s), None)


def _moved(
    base: Cell, other: Cell, before: Place, after: Place, of: Calibration | None
) -> Iterator[Conclusion]:
    if base.ridge is None or other.ridge is None or after.measured_s is None:
        return
    both = (base.profile, other.profile, of)
    yield say(
        "From {first} to {second} ({name}) the ridge goes from {ridge_1} to {ridge_2} operations/byte, "
        "the layer {kind} from {x_1} to {x_2}, and from {share_1} to {share_2} of its roof; {crossed}.",
        first=base.precision,
        second=other.precision,
        name=f"{base.case.model.name}, {base.fusion.name}, batch {base.batch_size}",
        ridge_1=evidence(f"ridge, {base.precision}", base.ridge, "count", *both),
        ridge_2=evidence(f"ridge, {other.precision}", other.ridge, "count", *both),
        kind=before.kind,
        x_1=_intensity(before, base),
        x_2=_intensity(after, other),
        share_1=roof_share(before, base, of),
        share_2=roof_share(after, other, of),
        crossed=_crossed(base, other),
    )


def _crossed(base: Cell, other: Cell) -> str:
    names = [
        f"{each.kind} ({each.bound} to {after.bound})"
        for each in base.places
        if (after := other.place(each.kind)) is not None and each.bound != after.bound
    ]
    return f"the ridge passes {', '.join(names)}" if names else "it passes none of the operators"


def batch(cells: Sequence[Cell], of: Calibration | None) -> Iterator[Conclusion]:
    """What the largest batch does to the places, beside the smallest."""
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in sorted(profiled(cells), key=lambda each: each.batch_size):
        key = (cell.case.model.name, cell.precision, cell.fusion.name)
        groups.setdefault(key, []).append(cell)
    for few, *_, many in (each for each in groups.values() if len(each) > 1):
        layer = _longest_layer(many)
        rest, rest_before = many.place(ELEMENTWISE), few.place(ELEMENTWISE)
        before = None if layer is None else few.place(layer.kind)
        if layer is None or before is None or rest is None or rest_before is None:
            continue
        if layer.roof_share is None or before.roof_share is None:
            continue
        yield say(
            "From batch {few} to {many} ({name}) the layer {kind} goes from {x_1} to {x_2} "
            "operations/byte and from {share_1} to {share_2} of its roof; what is elementwise from {e_1} "
            "to {e_2}.",
            few=str(few.batch_size),
            many=str(many.batch_size),
            name=f"{many.case.model.name}, {many.precision}, {many.fusion.name}",
            kind=layer.kind,
            x_1=_intensity(before, few),
            x_2=_intensity(layer, many),
            share_1=roof_share(before, few, of),
            share_2=roof_share(layer, many, of),
            e_1=_intensity(rest_before, few),
            e_2=_intensity(rest, many),
        )


def fusion(cells: Sequence[Cell]) -> Iterator[Conclusion]:
    """What each fusion saves in bytes and time, beside eager at the same batch."""
    found = largest(cells)
    eager = {
        (each.case.model.name, each.precision, each.batch_size): each
        for each in found
        if each.fusion == EAGER
    }
    for cell in found:
        base = eager.get((cell.case.model.name, cell.precision, cell.batch_size))
        if base is not None and cell.fusion != EAGER:
            yield from _saved(base, cell)


def _saved(base: Cell, cell: Cell) -> Iterator[Conclusion]:
    before_s, after_s = beside_layers_s(base), beside_layers_s(cell)
    if before_s is None or after_s is None:
        return
    both = (base.profile, cell.profile)
    yield say(
        "In {name} a step moves {after} where eager moves {before}; what is no linear layer moves "
        "{rest} of eager's bytes and takes {time} of its time.",
        name=cell.name,
        after=evidence("bytes", moved_bytes(cell), "bytes", *both),
        before=evidence("bytes, eager", moved_bytes(base), "bytes", *both),
        rest=evidence(
            "bytes but of linear layers, over eager's",
            beside_layers_bytes(cell) / beside_layers_bytes(base),
            "share",
            *both,
        ),
        time=evidence(
            "time but of linear layers, over eager's", after_s / before_s, "share", *both
        ),
    )


def _intensity(place: Place, cell: Cell) -> Evidence:
    quantity = f"operations/byte of {place.kind}, {cell.name}"
    return evidence(quantity, place.intensity, "count", cell.profile)
