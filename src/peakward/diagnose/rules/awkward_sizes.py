"""Sizes keep products from their fast kernels

Sees: sizes of the case's model whose rows are no multiple of 16 bytes in the type of its products; in a
trace, matmul kernels whose names say so (align1, align2).
Costs: tensor cores need 16-byte rows; without them other kernels, or padding, run at a fraction of the
rate.
Example: GPT-2's vocabulary of 50,257 in bf16; 50,304 is faster, and larger.
Lever: none; pad the vocabulary, and choose head dimensions of 64 or 128.
Wrong when: the library pads inside. The finding counts all the time of these products, and not only
what is lost.
"""

import re

from peakward.diagnose.diagnosis_input import (
    WORTH_SHARE,
    DiagnosisInput,
    Symptom,
    Verdict,
    abstain,
    number,
)
from peakward.diagnose.kernels import PRODUCT, chosen, of_operators, parts, shown
from peakward.records.case import ModelCase

CODE = "PREC004"
ROW_BYTES = 16
"""The alignment of rows that the fastest kernels of cuBLAS and CUTLASS need."""
WIDTHS = {"fp32": 4, "tf32": 4, "bf16-mixed": 2, "fp16-mixed": 2, "bf16": 2, "fp8": 1}
UNALIGNED = re.compile(r"(?:bf16|f16|fp16|h\w*gemm).*align[12](?:_|$|\b)")
SIZES = ("vocab_size", "d_model", "d_ff", "head_dim")


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the case's shape where there is one, else by the names of kernels."""
    if given.case is not None:
        return _of_case(given, given.case)
    gpu, time = given.gpu, given.time
    if gpu is None or time is None:
        return abstain(CODE, "the model's sizes")
    groups = chosen(
        gpu, lambda each: each.category == "matmul" and bool(UNALIGNED.search(each.name))
    )
    held = parts(time, groups)
    if not groups:
        return abstain(CODE, "the model's sizes")
    if time.share(held) < WORTH_SHARE:
        return None
    return Symptom(
        cause="Operands' rows are no multiple of 16 bytes, so a slower kernel was chosen.",
        evidence=shown(gpu, groups, given.steps),
        advice="pad the vocabulary and other sizes to a multiple of 8 elements, better 64",
        parts=held,
    )


def _of_case(given: DiagnosisInput, case: ModelCase) -> Verdict:
    if case.device != "cuda":
        return abstain(CODE, "a case on a GPU")
    step = ROW_BYTES // WIDTHS[case.configuration.precision]
    sizes = {name: int(getattr(case.model, name)) for name in SIZES}
    awkward = {name: size for name, size in sizes.items() if size % step}
    if not awkward:
        return None
    held = _products(given, set(awkward.values()))
    time = given.time
    if time is not None and held and time.share(held) < WORTH_SHARE:
        return None
    return Symptom(
        cause=f"Rows of {', '.join(name.replace('_', ' ') for name in awkward)} are no multiple of 16 bytes.",
        evidence=tuple(
            number(name.replace("_", " "), size, "count", f"case model.{name}")
            for name, size in awkward.items()
        ),
        advice=f"sizes that are multiples of {step} elements, better of 64",
        parts=held,
        is_all=bool(held),
    )


def _products(given: DiagnosisInput, sizes: set[int]) -> dict[str, float]:
    """The parts of the time in products that have one of these sizes."""
    gpu, time = given.gpu, given.time
    if gpu is None or time is None:
        return {}
    found = [
        each
        for each in gpu.operators
        if PRODUCT.search(each.name)
        and sizes & {int(size) for size in re.findall(r"\d+", each.dims)}
    ]
    return of_operators(time, gpu, found)
