"""What a case fixes for its memory: sizes and types. Refuses what is not covered."""

from peakward.predict.operators.plan import Plan
from peakward.predict.operators.tape import BFLOAT, FLOAT
from peakward.records.case import ModelCase, Precision
from peakward.records.errors import PeakwardError

_TYPES: dict[Precision, tuple[str, str]] = {
    "fp32": (FLOAT, FLOAT),
    "tf32": (FLOAT, FLOAT),
    "bf16": (BFLOAT, BFLOAT),
    "bf16-mixed": (FLOAT, BFLOAT),
    "fp16-mixed": (FLOAT, "float16"),
}
"""What parameters are stored in, and what products are computed in."""
_WIDTH = 8
"""The fused kernels take a head_dim that divides by so many; torch pads for one of them, and else
takes the scores apart."""


def planned(case: ModelCase) -> Plan:
    """The case's sizes, at the longest of its lengths.

    Raises:
        PeakwardError: a setting whose memory this room does not know.
    """
    _check(case)
    workload, configuration = case.workload, case.configuration
    stored, compute = _TYPES[configuration.precision]
    varies = bool(workload.varying_seq_lens) and workload.padding == "none"
    return Plan(
        shape=case.model,
        batch=workload.batch_size,
        seq=max(workload.varying_seq_lens) if varies else workload.seq_len,
        stored=stored,
        compute=compute,
        attention=configuration.attention,
    )


def _check(case: ModelCase) -> None:
    configuration = case.configuration
    _expect("device", case.device, "cuda")
    _expect("n_experts", case.model.n_experts, 1)
    _expect("precision", configuration.precision, *_TYPES)
    _expect("compile", configuration.compile, "none", "default", "reduce-overhead")
    if configuration.compile != "none":
        # What a compiler saves of a block that is recomputed was not measured.
        _expect("checkpointing of compiled blocks", configuration.checkpointing, "none")
    if configuration.attention != "naive":
        _check_fused(case)


def _check_fused(case: ModelCase) -> None:
    """That one kernel serves the case, as torch chooses on compute capability 9."""
    shape, narrow = case.model, _TYPES[case.configuration.precision][1] != FLOAT
    kernels = ("sdpa", "sdpa-efficient", *(("sdpa-cudnn", "sdpa-flash") if narrow else ()))
    _expect(f"attention of {case.configuration.precision}", case.configuration.attention, *kernels)
    _expect("remainder of head_dim by 8 for a fused kernel", shape.head_dim % _WIDTH, 0)
    if not narrow:
        heads = f"n_kv_heads of fused attention in {case.configuration.precision}"
        _expect(heads, shape.n_kv_heads, shape.n_heads)


def _expect(setting: str, got: object, *covered: object) -> None:
    if got not in covered:
        raise PeakwardError(
            f"expected {setting} {' or '.join(map(str, covered))} for memory in closed form, "
            f"got {got}: measure the case instead, or change it"
        )
