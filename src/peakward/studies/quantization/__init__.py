"""Study `quantization`: what weights in fewer bits take, what they gain by batch, and what they lose.

A decode step is timed with each kind of weights that a kernel of ours multiplies, at several batches, and one
product with int8 activations beside them. On a GPU dense weights and int4 with an int8 cache are timed by the
fused step too, at the batches that it is for. Then a real text is read with weights rounded in more ways than
these, so that what each way loses stands beside its size.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

from peakward.prediction.parameters import n_parameters
from peakward.prediction.traffic import parameter_bytes, quantised_bytes, quantised_elements
from peakward.records.case import MicroCase, ModelCase, Precision
from peakward.records.model_shape import ModelShape
from peakward.records.study import Conclusion
from peakward.studies import losses, pieces, values
from peakward.studies.cases import model_case
from peakward.studies.claims import Sentence, gains
from peakward.studies.engine import Study, View
from peakward.studies.expected import EXPECTED, FLOOR, OVER_EXPECTED, SHARE
from peakward.studies.pieces import DIFFERENCE
from peakward.studies.quantization import rounding
from peakward.studies.quantization.rounding import (
    DENSE,
    INT4,
    INT4_TORCHAO,
    INT8,
    INT8_ACTIVATIONS,
    INT8_TORCHAO,
    NEEDS_TORCHAO,
    OF_TORCHAO,
    READ,
    SERVED,
    Kept,
    Kind,
    by_way,
)
from peakward.studies.readings import ratio
from peakward.studies.scope import ScopeName
from peakward.studies.setting import Setting
from peakward.studies.values import (
    PEAK,
    REASON,
    STATUS,
    TIME,
    TOKENS_PER_S,
    VERDICT,
    Value,
    plot,
    spread,
    table,
    text,
)

RECIPE = "int4, int8 cache"
FUSED_DENSE, FUSED_RECIPE = f"{DENSE}, fused step", f"{RECIPE}, fused step"
FUSED: dict[str, Any] = {"more": (("decode_step", "fused"),)}
STEPS: dict[str, dict[str, Any]] = {
    DENSE: {},
    INT8: {"weights": "int8"},
    INT4: {"weights": "int4:128"},
    RECIPE: {"weights": "int4:128", "kv_cache": "int8"},
    FUSED_DENSE: FUSED,
    FUSED_RECIPE: {"weights": "int4:128", "kv_cache": "int8", **FUSED},
}
"""Steps by what differs from dense weights in separate kernels."""
OF_A_GPU = (FUSED_DENSE, FUSED_RECIPE)
"""Those of a GPU alone: on a CPU the fused step is interpreted."""
OVER = dict.fromkeys(STEPS, "dense weights") | {
    FUSED_DENSE: "separate kernels",
    FUSED_RECIPE: "dense weights in the fused step",
}
"""The base of each kind, in words."""
ON_A_GPU: dict[str, Any] = {
    "cuda_graphs": True,
    "attention": "flash-decode",
    "norm": "fused",
    "rope": "fused",
    "swiglu": "fused",
}
"""The settings that all share there: launched one by one, a step would wait for its host."""
BATCH_SIZES = (1, 4, 16, 64)
PRODUCTS = (DENSE, INT8, INT4, INT8_TORCHAO, INT4_TORCHAO, INT8_ACTIVATIONS)
"""The pieces of `lab.micro.stored_weights`."""
KERNELS = (INT4, INT4_TORCHAO)
"""Those of a GPU alone."""
MATRICES: dict[ScopeName, tuple[int, int]] = {
    "small": (2048, 8192),
    "corners": (8192, 28_672),
    "full": (8192, 28_672),
}
"""Inputs and outputs of one weight. On a GPU it is one of Llama-3-70B, which no L2 cache holds in 4 bits."""
SEQ_LENS: dict[ScopeName, tuple[int, ...]] = {
    "small": (64,),
    "corners": (1024,),
    "full": (1024, 4096),
}
NEEDS_A_GPU = "its kernel is for a GPU"
NEEDS_A_COMPILER = "needs a C++ compiler on the PATH"


def points(setting: Setting) -> Iterator[Kept]:
    """Size × length × batch × kind of weights, and batch × kind of one product, held against dense ones; then
    each way over the text."""
    protocol = setting.protocol(phases=False)
    for shape, n, batch in product(models(setting), lengths(setting), batches(setting)):
        for name in kinds(setting):
            case = step_case(setting, shape, n, batch, name)
            if setting.obstacle(case) is None:
                dense = FUSED_DENSE if name == FUSED_RECIPE else DENSE
                base = (step_case(setting, shape, n, batch, dense), protocol)
                yield Kept(case=case, protocol=protocol, name=name, base=base, model=shape.name)
    by = pieces.protocol(setting)
    for batch, name in product(batches(setting), PRODUCTS):
        yield Kept(
            case=product_case(setting, batch, name),
            protocol=by,
            name=name,
            base=(product_case(setting, batch, DENSE), by),
            model="one product",
            absent=absent(setting, name),
        )
    yield from rounding.points(setting)


def absent(setting: Setting, name: str) -> str | None:
    """Why such a product cannot be timed here, or None where it can."""
    if name in KERNELS and setting.device == "cpu":
        return NEEDS_A_GPU
    if name in OF_TORCHAO and not setting.has_torchao:
        return NEEDS_TORCHAO
    return NEEDS_A_COMPILER if name in OF_TORCHAO and not setting.has_compiler else None


def models(setting: Setting) -> tuple[ModelShape, ...]:
    """The sizes whose steps are timed: on a CPU, whose smaller size is its host's time alone, the larger."""
    return setting.grid.models[-1:] if setting.scope.name == "small" else setting.grid.models


def kinds(setting: Setting) -> tuple[str, ...]:
    """The kinds of steps."""
    return tuple(each for each in STEPS if setting.device == "cuda" or each not in OF_A_GPU)


def precision(setting: Setting) -> Precision:
    """The user's, or bf16: what weights of fewer bits are held against on a CPU too."""
    return setting.scope.precisions[0] if setting.scope.precisions else "bf16"


def lengths(setting: Setting) -> tuple[int, ...]:
    """The user's, or the scope's."""
    return setting.scope.seq_lens or SEQ_LENS[setting.scope.name]


def batches(setting: Setting) -> tuple[int, ...]:
    """The user's, or all."""
    one = setting.scope.batch_size
    return BATCH_SIZES if one is None else (one,)


def step_case(setting: Setting, shape: ModelShape, n: int, batch: int, name: str) -> ModelCase:
    """A decode step at n positions."""
    shared = ON_A_GPU if setting.device == "cuda" else {"attention": "sdpa"}
    settings = {"precision": precision(setting), **shared, **STEPS[name]}
    return model_case(shape, batch, n, "decode", setting.device, **settings)


def product_case(setting: Setting, batch: int, name: str) -> MicroCase:
    """One product of as many rows as there are sequences."""
    return MicroCase(
        subject="stored-weights",
        piece=name,
        sizes=(batch, *MATRICES[setting.scope.name]),
        precision="bf16",
        device=setting.device,
    )


def steps(view: View[Kept]) -> list[Kind]:
    """The decode steps."""
    return [row for row in view.rows if isinstance(row.case, ModelCase)]


def products(view: View[Kept]) -> list[Kind]:
    """The products with one weight."""
    return [row for row in view.rows if isinstance(row.case, MicroCase)]


def stored_bytes(row: Kind) -> float:
    """The weights of a step's model as they are stored."""
    case: ModelCase = row.case
    dense = n_parameters(case.model) - quantised_elements(case)
    return dense * parameter_bytes(case) + quantised_bytes(case)


def share_of_dense(row: Kind) -> float | None:
    """The bytes of a step's weights over those of dense ones."""
    return ratio(stored_bytes(row), n_parameters(row.case.model) * parameter_bytes(row.case))


def batch_of(row: Kind) -> int:
    """The sequences of a step, or the rows of a product."""
    case = row.case
    return case.sizes[0] if isinstance(case, MicroCase) else int(case.workload.batch_size)


def place(row: Kind) -> str:
    """For a sentence: "2.7B at 1,024 positions", "One product with a weight of 8,192 × 2,048"."""
    case = row.case
    if isinstance(case, MicroCase):
        _, n_in, n_out = case.sizes
        return f"One product with a weight of {n_out:,} × {n_in:,}"
    return f"{row.point.model} at {case.workload.seq_len:,} positions"


def speeds(view: View[Kept]) -> Iterator[Conclusion]:
    """Says what each kind of weights gains over dense ones, over all steps and batch by batch."""
    for rows in values.groups(steps(view), lambda row: row.name):
        if rows[0].name != DENSE:
            yield from gains(rows, rows[0].name, OVER[rows[0].name])
    every = [*steps(view), *products(view)]
    for rows in values.groups(every, lambda row: (place(row), row.name)):
        ran = [row for row in rows if row.speed is not None]
        if len(ran) > 1 and ran[0].name != DENSE:
            told = Sentence()
            each = [
                told.estimate(f"speed at batch {batch_of(row)}", row.speed, "ratio", *row.both)
                + f" at {batch_of(row)}{'' if row.is_told_apart else ' (not told apart)'}"
                for row in ran
            ]
            yield from told.end(
                f"{place(ran[0])}, {ran[0].name}: by batch, the speed of "
                f"{OVER.get(ran[0].name, OVER[DENSE])} times "
                f"{', '.join(each)}."
            )


def recipe(view: View[Kept]) -> Iterator[Conclusion]:
    """Says of int4 weights with an int8 cache what they gain at each batch, and what they lose."""
    read = by_way(view)
    ran = [row for row in steps(view) if row.name == RECIPE and row.speed is not None]
    whose = "SmolLM2-135M" if view.setting.has_smollm2 else "the model trained here"
    for rows in values.groups(ran, place):
        told = Sentence()
        first, last = rows[0], rows[-1]
        share = told("bytes", share_of_dense(first), "share", first.measurement)
        speeds = " and at ".join(
            f"{told.interval(f'speed at {batch_of(row)}', row.speed, 'ratio', *row.both)}"
            f"{' of its speed at a batch of' if row is first else ' at'} {batch_of(row)}"
            for row in ((first,) if first is last else (first, last))
        )
        yield from told.end(
            f"int4 weights and an int8 cache take {share} of the bytes of weights in "
            f"{precision(view.setting)}; {place(first)} runs at {speeds}. With them, "
            f"calibrated, the loss of {whose} is {losses.by_how_much(told, read[SERVED], read[DENSE])}."
        )


def fused_recipe(view: View[Kept]) -> Iterator[Conclusion]:
    """Says of the same what they gain in the fused step, over dense weights and cache there and in separate
    kernels."""
    separate = {(place(row), batch_of(row)): row for row in steps(view) if row.name == DENSE}
    told_of = [row for row in steps(view) if row.name == FUSED_RECIPE and row.speed is not None]
    for row in told_of:
        told, plain = Sentence(), row.against(separate[place(row), batch_of(row)])
        gain = told.interval("speed in the fused step", row.speed, "ratio", *row.both)
        of_both = told.interval("speed of both", plain.speed, "ratio", *plain.both)
        yield from told.end(
            f"{place(row)}, batch {batch_of(row)}: in the fused step int4 weights and an int8 cache run at "
            f"{gain} the speed of weights and cache in {precision(view.setting)} there, and at "
            f"{of_both} the speed of these in separate kernels."
        )


def notes(view: View[Kept]) -> tuple[str, ...]:
    """Conventions and limits."""
    setting = view.setting
    rows, length, seen, n_steps = READ[setting.scope.name]
    whose = (
        "SmolLM2-135M, whose file has its weights in 4 bits already (Q4_1, in groups of 32, with an offset), "
        "so that dense is rounded once and every other way twice,"
        if setting.has_smollm2
        else "A small decoder of bytes, trained here from one seed for every way,"
    )
    planned = (
        step_case(setting, shape, n, batch, name)
        for shape, n, batch, name in product(
            models(setting), lengths(setting), batches(setting), kinds(setting)
        )
    )
    return (
        f"Steps in {precision(setting)} on random weights. int8 has a scale for each output, "
        "int4 one for 128 inputs; of the model that reads for 64, which divides its widths. "
        "Embeddings, head and norms are not rounded.",
        *(
            ("Speed over dense of a kind in the fused step is over dense weights in that step.",)
            if setting.device == "cuda"
            else ()
        ),
        f"{whose} reads {rows} stretches of {length:,} tokens. Calibration (GPTQ), smoothing (SmoothQuant) "
        f"and {n_steps} steps of fine-tuning see {seen} others of the same text.",
        "Calibrated and fine-tuned int4 has the form of int4, and with it the speed. torchao's int8 is its "
        "Int8WeightOnlyConfig and its int4 the Int4WeightOnlyConfig of tiles packed to four dimensions, with "
        "an offset in each group and both sought by HQQ; its products are compiled. No kernel of ours "
        "multiplies int8 activations: their speed is that of one product by torch, 32 rows at least, with "
        "its inputs rounded in every step. On a GPU each product is one CUDA graph.",
        *setting.refusals(planned),
    )


BATCH = Value("sequences", "count", batch_of)
WEIGHTS = Value("weights", "bytes", stored_bytes)
STUDY = Study(
    title="What do weights in fewer bits gain in size and speed, and lose on real text?",
    points=points,
    needs_ceilings=True,
    tables=(
        table(
            lambda row: f"A decode step of {row.point.model}",
            (
                Value("positions", "count", lambda row: row.case.workload.seq_len),
                BATCH,
                text("kind", lambda row: row.name),
                STATUS,
                WEIGHTS,
                Value("of dense", "share", share_of_dense),
                FLOOR,
                EXPECTED,
                TIME,
                OVER_EXPECTED,
                TOKENS_PER_S,
                SHARE,
                spread("speed over dense", lambda row: row.speed, "ratio"),
                PEAK,
                VERDICT,
                REASON,
            ),
            steps,
            each=lambda row: row.point.model,
        ),
        table(
            place,
            (
                Value("rows", "count", batch_of),
                text("kind", lambda row: row.name),
                STATUS,
                TIME,
                spread("speed over dense", lambda row: row.speed, "ratio"),
                DIFFERENCE,
                VERDICT,
                REASON,
            ),
            products,
            each=place,
            note=pieces.FP64_NOTE,
        ),
        rounding.TABLE,
    ),
    plots=(
        plot(
            lambda row: f"Speed over dense weights, {place(row)}",
            BATCH,
            Value("speed over dense", "ratio", lambda row: row.speed),
            lambda row: row.name,
            lambda view: [*steps(view), *products(view)],
            each=place,
            log="x",
        ),
        rounding.PLOT,
    ),
    claims=(recipe, fused_recipe, rounding.quality, rounding.won_back, speeds),
    notes=notes,
)
