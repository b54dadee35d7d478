"""Study `layout`: what it costs that operands do not lie row after row, and which views copy them."""

from collections.abc import Callable, Iterator

import msgspec

from peakward.records.case import MicroCase, MicroSubject
from peakward.records.study import Conclusion
from peakward.studies import pieces
from peakward.studies.claims import Sentence, compared, sources
from peakward.studies.engine import Study, View
from peakward.studies.pieces import (
    Grids,
    Piece,
    PieceRow,
    Sizes,
    named,
    place,
    sizes,
    subject,
    work,
)
from peakward.studies.readings import median_s, ratio
from peakward.studies.setting import Setting
from peakward.studies.values import STATUS, TIME, VERDICT, Value, bars, label, table, text

TITLES: dict[MicroSubject, str] = {
    "matmul-operands": "Operands of a product",
    "addition": "Operands of an addition",
    "heads": "Heads first, or permuted",
    "projection": "Queries, keys and values: separate or packed",
}
PIECES: dict[MicroSubject, tuple[str, ...]] = {
    "matmul-operands": (
        "NN",
        "NT",
        "TN",
        "TT",
        "strided rows",
        "strided columns",
        "strided columns (copied)",
        "expanded",
    ),
    "addition": (
        "contiguous",
        "both transposed",
        "one transposed",
        "one transposed (copied)",
        "strided rows",
        "strided columns",
        "an expanded row",
        "an expanded column",
    ),
    "heads": (
        "scores of heads first",
        "scores of permuted heads",
        "scores of permuted heads (copied)",
        "attention of heads first",
        "attention of permuted heads",
        "attention of permuted heads (copied)",
    ),
    "projection": ("separate", "packed", "packed (copied)"),
    "view": tuple(
        f"{change} of {kind}"
        for change in ("view", "reshape", "contiguous", "transpose", "expand", "select", "chunk")
        for kind in ("contiguous", "transposed")
    ),
}
BASES: dict[MicroSubject, tuple[str, ...]] = {
    "matmul-operands": ("NN",),
    "addition": ("contiguous",),
    "heads": ("scores of heads first", "attention of heads first"),
    "projection": ("separate",),
}
"""The layouts that the others are held against: the same work on what lies row after row, separately."""
COPIED = " (copied)"
VIEWED = (512, 768)
COUNTED = {"view": "views", "new": "copies", "refused": "refused"}
WORDS = {"new": "copy", "view": "view", "refused": "refused by torch"}
SMALL: Sizes = {
    "matmul-operands": ((768,),),
    "addition": ((2048,),),
    "heads": ((2, 8, 256, 64),),
    "projection": ((512, 768),),
}
FULL_ON_CPU: Sizes = {
    "matmul-operands": ((256,), (768,), (1536,)),
    "addition": ((512,), (2048,), (4096,)),
    "heads": ((2, 8, 256, 64), (4, 12, 512, 64)),
    "projection": ((128, 768), (512, 768), (1024, 1600)),
}
CORNERS: Sizes = {
    "matmul-operands": ((1024,), (8192,)),
    "addition": ((1024,), (16_384,)),
    "heads": ((4, 12, 1024, 64), (4, 32, 2048, 80)),
    "projection": ((512, 768), (8192, 2560)),
}
FULL: Sizes = {
    "matmul-operands": ((1024,), (2048,), (4096,), (8192,)),
    "addition": ((1024,), (4096,), (8192,), (16_384,)),
    "heads": ((4, 12, 512, 64), (4, 12, 1024, 64), (4, 25, 1024, 64), (4, 32, 2048, 80)),
    "projection": ((4, 2560), (512, 768), (2048, 1600), (8192, 2560)),
}
GRIDS: Grids = {
    ("cpu", "small"): SMALL,
    ("cpu", "corners"): FULL_ON_CPU,
    ("cpu", "full"): FULL_ON_CPU,
    ("cuda", "small"): SMALL,
    ("cuda", "corners"): CORNERS,
    ("cuda", "full"): FULL,
}


def points(setting: Setting) -> Iterator[Piece]:
    """Subject × sizes × precision × layout, timed; then the views, each once and untimed."""
    for piece in pieces.grid(setting, GRIDS, PIECES):
        plain = msgspec.structs.replace(piece.case, piece=base_name(piece.case))
        yield msgspec.structs.replace(piece, base=(plain, piece.protocol))
    views = (
        MicroCase(subject="view", piece=piece, sizes=VIEWED, device=setting.device)
        for piece in PIECES["view"]
    )
    yield from pieces.pieces(views, setting.protocol(warmup_steps=0, min_steps=1, max_steps=1))


def base_name(case: MicroCase) -> str:
    """The name of what a piece is held against: of the bases of its subject the one of the same work."""
    bases, kind = BASES[case.subject], case.piece.partition(" of ")[0]
    return next((base for base in bases if base.startswith(f"{kind} of ")), bases[0])


def of(*wanted: MicroSubject) -> Callable[[View[Piece]], Iterator[PieceRow]]:
    """The rows of these subjects."""
    return lambda view: (row for row in view.rows if subject(row) in wanted)


TIMED = of("matmul-operands", "addition", "heads")


def costs(view: View[Piece]) -> Iterator[Conclusion]:
    """Compares, for each work at each size, the layout that costs most with the plain one."""
    for group in pieces.groups(TIMED(view)):
        for name in BASES[subject(group[0])]:
            base = named(group, name)
            others = [
                each
                for each in group
                if base_name(each.point.case) == name
                and each != base
                and each.time is not None
                and not each.name.endswith(COPIED)
            ]
            if base is not None and others:
                worst = max(others, key=lambda row: row.median_s or 0.0)
                yield from compared(place(worst), worst, base)


def copies(view: View[Piece]) -> Iterator[Conclusion]:
    """Whether a copy beforehand pays in the step that makes it."""
    for group in pieces.groups(TIMED(view)):
        for each in group:
            if each.name.endswith(COPIED):
                yield from compared(place(each), each, named(group, each.name.removesuffix(COPIED)))


def views(view: View[Piece]) -> Iterator[Conclusion]:
    """How many operations were views, copies or refused, and the names of those that were no views."""
    ran = [row for row in of("view")(view) if work(row) is not None]
    if not ran:
        return
    told, behind = Sentence(), sources(ran)
    found = {result: [row for row in ran if result_of(row) == result] for result in WORDS}
    n_ran = told.count("operations", len(ran), behind)
    n = {result: told.count(COUNTED[result], len(rows), behind) for result, rows in found.items()}
    names = {
        result: ", ".join(row.name for row in rows) or "none" for result, rows in found.items()
    }
    yield from told.end(
        f"Of {n_ran} operations on a matrix {n['view']} are views of it. "
        f"Copies: {n['new']} ({names['new']}); refused: {n['refused']} ({names['refused']})."
    )


def packing(view: View[Piece]) -> Iterator[Conclusion]:
    """Three projections against one, with and without the copies."""
    for group in pieces.groups(of("projection")(view)):
        for piece in ("packed", "packed (copied)"):
            yield from compared(place(group[0]), named(group, "separate"), named(group, piece))


def result_of(row: PieceRow) -> str | None:
    """Returns the kind of an operation's result, a key of `WORDS`."""
    return None if (done := work(row)) is None else done.result


def over_least(row: PieceRow) -> float | None:
    """Bytes moved over those that have to be."""
    return None if (done := work(row)) is None else ratio(done.moved_bytes, done.least_bytes)


def allocated_bytes(row: PieceRow) -> int | None:
    """Returns the bytes that an operation allocated."""
    return None if (done := work(row)) is None else done.allocated_bytes


VALUES = (
    label("sizes", sizes),
    pieces.PRECISION,
    label("layout", lambda row: row.name),
    STATUS,
    TIME,
    Value("over the first", "ratio", lambda row: ratio(row.median_s, median_s(row.base))),
    pieces.MOVED,
    Value("over the least", "ratio", over_least),
    pieces.RATE,
    pieces.DIFFERENCE,
    VERDICT,
)
STUDY = Study(
    title="What do strides cost, and which views copy?",
    points=points,
    tables=(
        *(table(title, VALUES, of(wanted)) for wanted, title in TITLES.items()),
        table(
            "Which views copy",
            (
                label("operation", lambda row: row.name.split(" of ")[0]),
                text("of a matrix that is", lambda row: row.name.split(" of ")[1]),
                text("result", lambda row: WORDS.get(result_of(row) or "", "not run")),
                Value("allocated", "bytes", allocated_bytes),
                pieces.MOVED,
            ),
            of("view"),
        ),
    ),
    plots=tuple(
        bars(
            title,
            "layout",
            Value("time", "s", lambda row: row.time),
            lambda row: f"{sizes(row)}, {row.point.case.precision}",
            of(wanted),
        )
        for wanted, title in TITLES.items()
    ),
    claims=(costs, copies, views, packing),
    notes=lambda _view: (
        "Products: N is stored row after row, T column after column; the left operand first. What "
        "is strided has a gap after each row or element, what is expanded is stored once. Pieces "
        "that say so copy their operands to contiguous ones in every step.",
        "Bytes moved are those of the operators that torch dispatched, copies of its own before a "
        "product among them, though not those inside an operator; gaps between elements do not "
        "count, though a line of the cache holds them.",
        "A view is told by its memory: it lies in its input's, and allocates none. Views are not timed.",
        pieces.FP64_NOTE,
    ),
)
