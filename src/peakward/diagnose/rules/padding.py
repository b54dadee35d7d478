"""Padding is computed with the rest

Sees: a workload whose batches of varying length are padded to the longest.
Costs: products, norms and the loss work on tokens that nobody reads.
Example: lengths of 128 to 1,024 padded to 1,024: 44% of the work.
Lever: none; pack sequences, or put those of similar length into one batch.
Wrong when: graphs or compilation need the fixed shapes, and gain more. Attention grows with the square
of the length, so its share of the waste is larger than counted here.
"""

from peakward.diagnose.diagnosis_input import DiagnosisInput, Symptom, Verdict, abstain, number
from peakward.diagnose.kernels import all_work

CODE = "BW004"
LEAST_SHARE = 0.1
"""The smallest share of padding among the tokens computed. Batches of similar lengths have up to this
much too."""


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the workload. A trace does not say which tokens are padding."""
    case, time = given.case, given.time
    if case is None:
        return abstain(CODE, "how long the sequences in a batch are")
    work = case.workload
    if work.padding == "none" or not work.varying_seq_lens:
        return None
    computed = work.batch_size * work.accumulate * work.seq_len
    share = 1 - work.tokens_per_step / computed
    if share < LEAST_SHARE:
        return None
    work_parts = {} if time is None else all_work(time)
    return Symptom(
        cause="Every batch is computed at the longest length.",
        evidence=(
            number("tokens computed a step", computed, "count", "case workload"),
            number("of these, padding", share, "share", "case workload.varying_seq_lens"),
        ),
        advice="pack several sequences into one row, or batch those of similar length",
        parts={name: seconds * share for name, seconds in work_parts.items()},
        is_all=False,
        share=share if time is None else None,
    )
