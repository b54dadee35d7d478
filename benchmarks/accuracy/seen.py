"""Which cases the constants of `prediction.time` have seen.

Two things were fitted to FITTED_ON:

- the host's costs (`dispatch`) to the eager steps that waited for the host, in SEEN_BY_DISPATCH;
- each operator's factors (`kernels`, `products`, `setting`) to traces of ten train steps of
  TRACED_MODELS. The traces are not stored and their batch and length not recorded, so every case of
  such a shape counts as one whose operators were seen. No step's time was fitted.

Of compiled steps the host's costs (`compiled_dispatch`) were fitted to fourteen of the
bench-compiled files that waited for the host, and the factors of Inductor's kernels (`fused`) to two
profiles, of COMPILED_MODELS.

The factors of the intervals (`errors_seen`) were chosen with all of these cases in view: only
`accuracy.generality` judges them by cases that they have not seen. And the datasheet's prediction
takes STATED shares of the peak that an H200 gave. How much of recomputation falls in the forward
pass (`dispatch.FORWARD_SHARE`) was timed on a CPU, after the worst case here had pointed to it.
"""

from accuracy.records import Merged, Seen
from peakward.records.prediction import Waits

FITTED_ON = "h200-141"
"""The device, by its key."""
DECODED_ON = "h100-sxm-80"
"""Where the constants of products of few rows were fitted, to captured decode steps."""
SEEN_BY_DISPATCH = ("bench-eager", "bench-shapes", "bench-compiled", "study-checkpointing")
"""Names in the files. Of checkpointing no other measurement exists to have been fitted to."""
TRACED_MODELS = ("small", "medium", "large", "xl", "2.7B", "gpt2")
COMPILED_MODELS = ("small", "2.7B")


def seen(case: Merged, bound: Waits, device: str) -> Seen:
    """What of the case was fitted to, if the step waits for `bound` on the device of that key."""
    if device != FITTED_ON:
        decodes = device == DECODED_ON and case.case.workload.pass_ == "decode"
        return "operators of the shape" if decodes and bound == "device" else "nothing"
    if bound == "host":
        fitted = any(name in file for name in SEEN_BY_DISPATCH for file in case.files)
        return "host costs" if fitted else "nothing"
    compiled = case.case.configuration.compile != "none"
    traced = COMPILED_MODELS if compiled else TRACED_MODELS
    return "operators of the shape" if case.case.model.name in traced else "nothing"
