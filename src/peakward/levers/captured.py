"""What a capture of a module's operators sees of a case, and what it does not."""

from peakward.records.case import ModuleCase

SEEN: dict[str, tuple[str | bool, str]] = {
    "attention": ("as-written", "a capture has the attention that a CPU dispatches"),
    "compile": ("none", "a capture sees operators as the module's code calls them, not what fuses"),
    "cuda_graphs": (False, "a capture runs each operator by itself"),
    "optimizer": ("adamw-foreach", "a capture steps with AdamW over lists"),
    "loss": ("torch", "a capture takes torch's cross-entropy"),
    "norm": ("torch", "a capture has the norms that the module calls"),
    "rope": ("torch", "a capture has the rotation that the module calls"),
    "weights": ("dense", "a capture has the products that the module calls"),
    "swiglu": ("torch", "a capture has the activation that the module calls"),
}
"""Of each setting the one that a capture sees, and why it sees no other."""


def unseen(case: ModuleCase) -> str | None:
    """Why a capture of the module would be of another case, or None where it is of this one."""
    configuration, work = case.configuration, case.workload
    for axis, value in configuration.more:
        return f"{axis} {value} is not seen by operators: a capture knows of no such lever"
    for field, (seen, why) in SEEN.items():
        value = getattr(configuration, field)
        if value != seen and not (field == "optimizer" and work.pass_ != "train_step"):
            written = "on" if value is True else value
            return f"{field.replace('_', '-')} {written} is not seen by operators: {why}"
    if configuration.precision in ("tf32", "fp8"):
        return f"{configuration.precision} is not seen by operators: fp32 and 16-bit operands are"
    if configuration.precision == "fp16-mixed" and work.pass_ == "train_step":
        return "the loss scaling of fp16-mixed is not seen by operators: take bf16-mixed"
    if work.accumulate != 1:
        return f"{work.accumulate} micro-batches are not seen by operators: a capture runs one"
    return f"{work.pass_} is no pass of any module: take forward" if work.caches else None
