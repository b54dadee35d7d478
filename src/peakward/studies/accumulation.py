"""Study `accumulation`: what the type of a running sum costs in digits."""

from collections.abc import Callable, Iterable, Iterator

from peakward.records.case import MicroCase, MicroSubject
from peakward.records.study import Conclusion
from peakward.studies import pieces
from peakward.studies.claims import Sentence
from peakward.studies.engine import Study, View
from peakward.studies.pieces import Piece, PieceRow, difference, sizes, subject
from peakward.studies.scope import ScopeName
from peakward.studies.setting import Setting
from peakward.studies.values import STATUS, TIME, VERDICT, Value, bars, label, table

TITLES: dict[MicroSubject, str] = {
    "sum": "The sum of 0.01, a thousand times",
    "dot": "A dot product of numbers from 0 to 1",
    "variance": "The variance of numbers around a mean",
}
PIECES: dict[MicroSubject, tuple[str, ...]] = {
    "sum": (
        "fp32",
        "fp16",
        "fp32 of fp16 terms",
        "fp32 of cast fp16 terms",
        "bf16",
        "fp32 of bf16 terms",
    ),
    "dot": (
        "fp32 one by one",
        "fp16 one by one",
        "fp16 products, fp32 sum",
        "fp16 by torch",
        "bf16 one by one",
        "bf16 products, fp32 sum",
        "bf16 by torch",
    ),
    "variance": tuple(
        f"{name} {way}"
        for name in ("fp32", "fp16", "bf16")
        for way in ("two passes", "mean of squares")
    ),
}
SIZES: dict[ScopeName, dict[MicroSubject, tuple[tuple[int, ...], ...]]] = {
    "small": {"sum": ((1000,),), "dot": ((1024,),), "variance": ((768, 1), (768, 100))},
    "corners": {"sum": ((1000,),), "dot": ((1024,), (8192,)), "variance": ((768, 1), (768, 100))},
    "full": {
        "sum": ((1000,), (10_000,)),
        "dot": ((256,), (1024,), (8192,)),
        "variance": ((768, 1), (768, 10), (768, 100), (4096, 100)),
    },
}
WRONG = 0.01
"""An error of one per cent and more is told as a wrong result."""


def points(setting: Setting) -> Iterable[Piece]:
    """Subject × sizes × way. Few steps: a step is a thousand additions, and its time is not the question."""
    by = setting.protocol(warmup_steps=1, min_steps=3, max_steps=5)
    return pieces.pieces(
        (
            MicroCase(subject=each, piece=piece, sizes=at, device=setting.device)
            for each, of_each in SIZES[setting.scope.name].items()
            for at in of_each
            for piece in PIECES[each]
        ),
        by,
    )


def of(wanted: MicroSubject) -> Callable[[View[Piece]], Iterator[PieceRow]]:
    """The rows of a subject."""
    return lambda view: (row for row in view.rows if subject(row) == wanted)


def result(row: PieceRow) -> float | None:
    """The number that came out."""
    return None if (done := pieces.work(row)) is None else done.value


def errors(view: View[Piece]) -> Iterator[Conclusion]:
    """Names, for each subject at each size, what came out of each way and how far it is off."""
    for group in pieces.groups(view.rows):
        found = [(off, row) for row in group if (off := difference(row)) is not None]
        if not found:
            continue
        told = Sentence()
        said = [
            f"{row.name} {_result(told, row)}"
            f"{told(f'error, {row.name}', off, 'share', row.measurement)} off"
            for off, row in found
        ]
        over = [row.name for row in group if row.time is not None and difference(row) is None]
        beyond = f"; not finite: {', '.join(over)}" if over else ""
        yield from told.end(f"{subject(group[0])} of {sizes(group[0])}: {', '.join(said)}{beyond}.")


def _result(told: Sentence, row: PieceRow) -> str:
    value = result(row)
    if subject(row) != "sum" or value is None:
        return ""
    return f"{told(f'result, {row.name}', value, 'text', row.measurement)}, "


def wrong(view: View[Piece]) -> Iterator[Conclusion]:
    """Which ways are wrong by a per cent and more, and which of all ways is the nearest to fp64."""
    for group in pieces.groups(view.rows):
        found = [(off, row) for row in group if (off := difference(row)) is not None]
        bad = [each for each in found if each[0] >= WRONG]
        good = [each for each in found if each[0] < WRONG]
        if not bad or not good:
            continue
        told = Sentence()
        worst = told.by_name("error", sorted(bad, key=lambda each: -each[0]), "share")
        best = told.by_name("error", [min(good, key=lambda each: each[0])], "share")
        yield from told.end(
            f"{subject(group[0])} of {sizes(group[0])}: wrong by a per cent or more are {worst}; the nearest "
            f"to fp64 is {best}."
        )


ERROR = Value("error", "share", difference)
RESULT = Value("result", "text", lambda row: None if (v := result(row)) is None else f"{v:.6g}")
VALUES = (
    label("sizes", sizes),
    label("computed in", lambda row: row.name),
    STATUS,
    RESULT,
    ERROR,
    TIME,
    VERDICT,
)
STUDY = Study(
    title="What does the type of a running sum cost?",
    points=points,
    tables=tuple(table(title, VALUES, of(wanted)) for wanted, title in TITLES.items()),
    plots=tuple(
        bars(title, "computed in", ERROR, sizes, of(wanted)) for wanted, title in TITLES.items()
    ),
    claims=(errors, wrong),
    notes=lambda _view: (
        "The error of the sum is from a hundredth of the number of terms, so that it holds the rounding of "
        "0.01 to the type of the terms; the others are from fp64 on the same numbers in their type.",
        "One by one: each addition rounds to the type of the sum. By torch: its own dot product, which adds "
        "in fp32.",
    ),
)
