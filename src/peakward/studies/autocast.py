"""Study `autocast`: the type of every tensor of a step under autocast, and which operations it keeps in fp32.

A toy model with a LayerNorm and a decoder show the types in a step. Which operations stay in fp32 is found by
calling torch's functions one by one: nothing here rests on a list.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import msgspec

from peakward.models.presets import model
from peakward.records.case import NumericsCase, NumericsSubject
from peakward.records.model_shape import ModelShape
from peakward.records.numerics import TensorKind, TypeSeen
from peakward.records.study import Conclusion
from peakward.studies import values
from peakward.studies.claims import Sentence
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.scope import ScopeName, micro
from peakward.studies.setting import Setting
from peakward.studies.values import REASON, STATUS, Value, label, of_row, table, text

WAYS = {"fp16": "float16", "bf16": "bfloat16"}
TOY = "toy"
SIZES: dict[ScopeName, tuple[int, int]] = {"small": (2, 16), "corners": (4, 128), "full": (4, 512)}
"""The decoder's sequences and their length."""
VARIANTS: dict[str, dict[str, Any]] = {
    "gpt": {"norm": "layernorm", "positions": "learned", "activation": "gelu", "gated": False},
    "alibi": {"positions": "alibi"},
    "experts": {"n_experts": 4, "n_active_experts": 2},
}
MORE_VARIANTS: dict[str, dict[str, Any]] = {
    "sinusoidal": {"positions": "sinusoidal"},
    "gelu-tanh": {"activation": "gelu-tanh"},
    "tied": {"tied_head": True},
}
"""Models of the full grid."""
FP32 = "float32"
MOST_NAMED = 12
"""Functions named in a sentence; the table has all."""
PARTS: tuple[TensorKind, ...] = ("parameter", "output", "logits", "loss", "gradient")
CAST = "aten._to_copy.default"
"""torch's operator that changes the type of a tensor."""

Look = Point[NumericsCase]
Line = tuple[Row[Look], Any]


def points(setting: Setting) -> Iterator[Look]:
    """Type × model, then type alone for the functions."""
    by, device = setting.protocol(), setting.device
    for way, shape in product(WAYS, (None, *shapes(setting))):
        case = NumericsCase(
            subject="types", way=way, sizes=SIZES[setting.scope.name], model=shape, device=device
        )
        yield Point(case=case, protocol=by, name=TOY if shape is None else shape.name)
    for way in WAYS:
        case = NumericsCase(subject="operators", way=way, device=device)
        yield Point(case=case, protocol=by, name="torch's functions")


def shapes(setting: Setting) -> list[ModelShape]:
    """The decoders: of a small grid one, else one size with each kind of parts that may be treated apart."""
    small = setting.scope.name == "small"
    own = micro() if small else model("small")
    shape = setting.scope.models[0] if setting.scope.models else own
    if small:
        return [shape]
    variants = VARIANTS | MORE_VARIANTS if setting.scope.name == "full" else VARIANTS
    others = (
        msgspec.structs.replace(shape, name=f"{shape.name}-{name}", **changes)
        for name, changes in variants.items()
    )
    return [shape, *others]


def seen(row: Row[Look], *kinds: TensorKind) -> tuple[TypeSeen, ...]:
    """The types of these kinds; none unless the case ended `ok`."""
    found = None if row.measurement is None else row.measurement.numerics
    return () if found is None else tuple(each for each in found.types if each.kind in kinds)


def of(view: View[Look], subject: NumericsSubject) -> list[Row[Look]]:
    """The rows of a subject."""
    return [row for row in view.rows if row.case.subject == subject]


def narrow(row: Row[Look]) -> str:
    """The type that is asked of autocast, as torch names it."""
    return WAYS[row.case.way]


def is_kept(row: Row[Look], each: TypeSeen) -> bool:
    """Whether a function returns fp32 for narrow arguments, and would not without autocast."""
    return each.given == narrow(row) and each.dtype == FP32 != each.plain


def is_narrowed(row: Row[Look], each: TypeSeen) -> bool:
    """Whether a function returns the narrow type for arguments in fp32."""
    return each.given == FP32 and each.dtype == narrow(row)


def named(row: Row[Look], rule: Callable[[Row[Look], TypeSeen], bool]) -> list[str]:
    """The functions that the rule is true of."""
    found = seen(row, "function")
    return sorted({each.where.removeprefix("torch.") for each in found if rule(row, each)})


def casts(row: Row[Look]) -> int:
    """How many times a tensor's type is changed in the forward pass and the loss."""
    return sum(each.n for each in seen(row, "operator") if each.where == CAST)


def in_fp32(row: Row[Look]) -> dict[str, int]:
    """How often each operator of the model ran with fp32 in and out."""
    found: dict[str, int] = {}
    for each in seen(row, "operator"):
        if each.where != CAST and each.given == FP32 == each.dtype:
            found[each.where] = found.get(each.where, 0) + each.n
    return found


def place(row: Row[Look]) -> str:
    """For a sentence: "toy under fp16 autocast on the CPU"."""
    device = "GPU" if row.case.device == "cuda" else "CPU"
    return f"{row.name} under {row.case.way} autocast on the {device}"


def types(view: View[Look]) -> Iterator[Conclusion]:
    """Says for each model how many tensors of each part are narrow and how many in fp32."""
    for row in of(view, "types"):
        told, said = Sentence(), []
        for part in PARTS:
            found = seen(row, part)
            if not found:
                continue
            if len(found) == 1:
                told(f"{part} in fp32", float(found[0].dtype == FP32), "count", row.measurement)
                said.append(f"{part} {found[0].dtype}")
                continue
            wide = [each for each in found if each.dtype == FP32]
            n = told(f"{part}s in fp32", len(wide), "count", row.measurement)
            all_of = told(f"{part}s", len(found), "count", row.measurement)
            said.append(f"{n} of {all_of} {part}s float32")
        if said:
            yield from told.end(f"{place(row)}: {', '.join(said)}.")


def norms(view: View[Look]) -> Iterator[Conclusion]:
    """Says the type that comes out of the norms: the devices differ in it."""
    for row in of(view, "types"):
        found = [each for each in seen(row, "output") if each.where.endswith("norm")]
        if not found:
            continue
        told, kinds = Sentence(), values.groups(found, lambda each: each.dtype)
        said = " and ".join(
            f"{name} from {told(f'norms in {name}', len(group), 'count', row.measurement)}"
            for group in kinds
            for name in (group[0].dtype,)
        )
        all_of = told("norms", len(found), "count", row.measurement)
        yield from told.end(f"{place(row)}: {said} of {all_of} norms.")


def kept(view: View[Look]) -> Iterator[Conclusion]:
    """Says how many of torch's functions autocast keeps in fp32 and how many it narrows, and names some."""
    for row in of(view, "operators"):
        called = {each.where for each in seen(row, "function")}
        if not called:
            continue
        told = Sentence()
        wide, small = named(row, is_kept), named(row, is_narrowed)
        n = told("functions called", len(called), "count", row.measurement)
        n_wide = told("functions kept in fp32", len(wide), "count", row.measurement)
        n_small = told("functions narrowed", len(small), "count", row.measurement)
        yield from told.end(
            f"{place(row)}: of {n} that ran, {n_wide} return fp32 for narrow arguments ({some(wide)}), and "
            f"{n_small} return {narrow(row)} for fp32 ones ({some(small)}); the others return what they "
            "would without autocast."
        )


def some(names: list[str]) -> str:
    """The first names, those without a namespace first."""
    ordered = sorted(names, key=lambda each: ("." in each, each))
    more = len(ordered) - MOST_NAMED
    said = ", ".join(ordered[:MOST_NAMED]) or "none"
    return said + (f" and {more} more" if more > 0 else "")


def work(view: View[Look]) -> Iterator[Conclusion]:
    """Says for each model how many casts autocast makes, and which of its operators ran in fp32."""
    for row in of(view, "types"):
        n_operators = sum(each.n for each in seen(row, "operator"))
        if not n_operators:
            continue
        told, wide = Sentence(), in_fp32(row)
        n = told("casts", casts(row), "count", row.measurement)
        of_all = told("operators", n_operators, "count", row.measurement)
        some_of = ", ".join(
            f"{name.removeprefix('aten.')} "
            f"{told(f'{name} in fp32', count, 'count', row.measurement)}"
            for name, count in sorted(wide.items(), key=lambda each: -each[1])[:MOST_NAMED]
        )
        yield from told.end(
            f"{place(row)}: {n} of {of_all} operators that compute forward are casts; in fp32 run "
            f"{some_of or 'none'}."
        )


def lines(view: View[Look]) -> Iterator[Line]:
    """Each tensor of each model, parameters and their gradients in one line."""
    for row in of(view, "types"):
        gradients = {each.where: each.dtype for each in seen(row, "gradient")}
        for each in seen(row, "parameter", "output", "logits", "loss"):
            yield row, (each, gradients.get(each.where) if each.kind == "parameter" else None)


def functions(view: View[Look]) -> Iterator[Line]:
    """Each function whose type autocast changes, once a type."""
    for row in of(view, "operators"):
        for each in seen(row, "function"):
            if is_kept(row, each) or is_narrowed(row, each):
                yield row, each


def operators(view: View[Look]) -> Iterator[Line]:
    """Each operator of each model by its types."""
    return ((row, each) for row in of(view, "types") for each in seen(row, "operator"))


WAY = text("autocast", lambda row: row.case.way)
STUDY = Study(
    title="Which types does autocast give, and which operations does it keep in fp32?",
    points=points,
    tables=(
        table(
            "What was looked at",
            (
                label("model", lambda row: row.name),
                WAY,
                text("device", lambda row: row.case.device),
                STATUS,
                Value("casts", "count", casts),
                REASON,
            ),
            note="Casts of the forward pass and the loss, as torch dispatched them.",
        ),
        table(
            "The types in a step",
            (
                *of_row(text("model", lambda row: row.name), WAY),
                text("tensor", lambda line: line[1][0].kind),
                label("of", lambda line: line[1][0].where or None),
                text("type", lambda line: line[1][0].dtype),
                text("its gradient's", lambda line: line[1][1]),
            ),
            lines,
        ),
        table(
            "The functions of torch whose type autocast changes",
            (
                *of_row(WAY),
                label("function", lambda line: line[1].where),
                text("given", lambda line: line[1].given),
                text("returns", lambda line: line[1].dtype),
                text("without autocast", lambda line: line[1].plain or "refused"),
            ),
            functions,
            note="The first kind of arguments that a function takes: one to three tensors, with sizes, "
            "places or a list. What takes none of them was not called.",
        ),
        table(
            "The operators of each model's forward pass, by type",
            (
                *of_row(text("model", lambda row: row.name), WAY),
                label("operator", lambda line: line[1].where),
                text("given", lambda line: line[1].given),
                text("returns", lambda line: line[1].dtype),
                Value("n", "count", lambda line: line[1].n),
            ),
            operators,
        ),
    ),
    claims=(types, norms, work, kept),
    notes=lambda view: (
        f"Autocast is that of the {'GPU' if view.on_gpu else 'CPU'}: the two keep other operations in fp32.",
        "The decoder's attention is naive, so that its products and its softmax are operators of their own. "
        "What it casts itself (rotations and losses in fp32) is among the casts.",
    ),
)
