"""What the numbers of `attention-parts` say."""

from collections.abc import Sequence

from peakward.records.study import Conclusion, Evidence
from peakward.studies.attention_parts.grid import Cell, longest, place
from peakward.studies.attention_parts.times import PartTimes
from peakward.studies.attention_parts.work import work
from peakward.studies.parts import evidence, say


def shares(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """The softmax's share at the longest sequence of each heads and precision."""
    return tuple(said for cell in longest(cells) for said in _share(cell))


def _share(cell: Cell) -> tuple[Conclusion, ...]:
    forward, backward = cell.times("forward"), cell.times("backward")
    if forward is None or backward is None:
        return ()
    text = "In {place} the softmax takes {forward} of attention's time forward and {backward} backward; "
    if cell.case.precision != "fp32":
        text += "casting the scores to fp32 for it and the weights back takes {casts} and {casts_back}; "
    text += "scaling and masking the scores takes {mask} forward."

    def share(quantity: str, part_s: float, of: PartTimes) -> Evidence:
        return evidence(quantity, part_s / of.whole_s, "share", cell.profile)

    fields = {
        "forward": share("softmax's share, forward", forward.softmax_s, forward),
        "backward": share("softmax's share, backward", backward.softmax_s, backward),
        "mask": share("share of scale and mask, forward", forward.mask_s, forward),
    }
    if cell.case.precision != "fp32":
        fields["casts"] = share("share of casts, forward", forward.casts_s, forward)
        fields["casts_back"] = share("share of casts, backward", backward.casts_s, backward)
    return (say(text, place=place(cell.case), **fields),)


def ratios(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """Time against FLOPs at the longest sequence of each heads and precision."""
    return tuple(said for cell in longest(cells) for said in _ratio(cell))


def _ratio(cell: Cell) -> tuple[Conclusion, ...]:
    forward, by_flops = cell.times("forward"), work(cell.case).over_products
    if forward is None or not forward.over_products:
        return ()
    by_time = forward.over_products
    return (
        say(
            "In {place} the softmax{alone} has {flops} of the FLOPs of the two products and takes {time} "
            "of their time, {each} as long for a FLOP.",
            place=place(cell.case),
            alone=", without its casts," if cell.case.precision != "fp32" else "",
            flops=evidence("softmax over products, FLOPs", by_flops, "share", cell.profile),
            time=evidence("softmax over products, time", by_time, "share", cell.profile),
            each=evidence(
                "time for a FLOP over the products'", by_time / by_flops, "ratio", cell.profile
            ),
        ),
    )
