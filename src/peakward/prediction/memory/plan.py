"""The sizes, types and attention kernel that a case fixes for its memory. Cases that are not covered are
refused."""

from typing import get_args

import msgspec

from peakward.prediction.operators.plan import OWN_KERNELS, Plan, plan
from peakward.records.case import ModelCase, Optimizer
from peakward.records.errors import PeakwardError

_OF_TORCH = ("cudnn", "flash", "efficient")
_WIDTH = 8
"""torch's fused kernels take a head_dim that divides by so many; torch pads for one of them, and else
takes the scores apart."""


def planned(case: ModelCase) -> Plan:
    """The plan of the case's operators, uncompiled, at the longest of its lengths.

    Raises:
        PeakwardError: a setting whose memory this room does not know.
    """
    _check(case)
    found = plan(_step_of_operators(case))
    _expect("a kernel of attention", found.attention, "naive", *_OF_TORCH, *OWN_KERNELS)
    if found.attention in _OF_TORCH:
        rest = case.model.head_dim % _WIDTH
        _expect("remainder of head_dim by 8 for a fused kernel", rest, 0)
    return found


def _check(case: ModelCase) -> None:
    configuration = case.configuration
    _expect("device", case.device, "cuda")
    _expect(
        "precision", configuration.precision, "fp32", "tf32", "bf16", "bf16-mixed", "fp16-mixed"
    )
    _expect("compile", configuration.compile, "none", "default", "reduce-overhead")
    _expect("optimizer", configuration.optimizer, *get_args(Optimizer))
    if case.model.n_experts > 1:
        _expect("compile of a mixture of experts", configuration.compile, "none")
    if configuration.compile != "none":
        # What a compiler saves of a block that is recomputed was not measured.
        _expect("checkpointing of compiled blocks", configuration.checkpointing, "none")


def _step_of_operators(case: ModelCase) -> ModelCase:
    """The case as `prediction.operators` has it: its plan is the same."""
    configuration, workload = case.configuration, case.workload
    varies = bool(workload.varying_seq_lens) and workload.padding == "none"
    longest = max(workload.varying_seq_lens) if varies else workload.seq_len
    return msgspec.structs.replace(
        case,
        workload=msgspec.structs.replace(
            workload, seq_len=longest, varying_seq_lens=(), padding="none"
        ),
        configuration=msgspec.structs.replace(
            configuration, compile="none", cuda_graphs=False, optimizer="adamw-fused"
        ),
    )


def _expect(setting: str, got: object, *covered: object) -> None:
    if got not in covered:
        raise PeakwardError(
            f"expected {setting} {' or '.join(map(str, covered))} for memory in closed form, "
            f"got {got}: measure the case instead, or change it"
        )
