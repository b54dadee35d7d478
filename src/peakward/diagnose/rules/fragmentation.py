"""The allocator holds much more memory than is used

Sees: the peak of reserved memory against the peak of allocated memory, where at least half of the
device's memory is reserved.
Costs: free blocks lie in pieces too small for the next request, and the step runs out of memory early.
Example: sequences of ever new lengths, each with blocks of its own sizes.
Lever: none; use expandable segments, or pad to a few lengths.
Wrong when: the peak of a first step (compiling, autotuning) left the reserve behind.
"""

from peakward.diagnose.diagnosis_input import DiagnosisInput, Symptom, Verdict, abstain, number
from peakward.diagnose.memory_use import SCARCE_SHARE

CODE = "MEM004"
LEAST_SHARE = 0.2
"""The smallest unused share of the reserved memory. The allocator takes segments of 2 MiB, 20 MiB and
more, so some of it is always free."""


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the allocator's measured peaks."""
    if given.measurement is None:
        return abstain(CODE, "a measurement")
    use, limit = given.measurement.memory, given.limit_bytes
    if use is None or use.peak_reserved_bytes is None or limit is None:
        return abstain(CODE, "reserved memory, and the device's size")
    unused = use.peak_reserved_bytes - use.peak_allocated_bytes
    scarce = use.peak_reserved_bytes >= SCARCE_SHARE * limit
    if not scarce or unused < LEAST_SHARE * use.peak_reserved_bytes:
        return None
    return Symptom(
        cause="Free blocks of the allocator do not fit what is asked for next.",
        evidence=(
            number(
                "reserved",
                use.peak_reserved_bytes,
                "bytes",
                "measurement memory.peak_reserved_bytes",
            ),
            number(
                "allocated",
                use.peak_allocated_bytes,
                "bytes",
                "measurement memory.peak_allocated_bytes",
            ),
        ),
        advice="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or fewer different shapes",
        held_back_bytes=unused,
        share=min(unused / limit, 1.0),
    )
