"""What can be done to a user's module from outside, and what must be changed in its own code."""

from peakward.records.case import Configuration, ModuleCase

INSIDE: dict[tuple[str, str | bool], str] = {
    (
        "precision",
        "fp8",
    ): "is a choice of each layer: replace its nn.Linear by layers that compute in fp8",
    (
        "attention",
        "flash",
    ): "is called by the module: call peakward.lab.ops.flash_attention in its attention",
    (
        "attention",
        "flash-hopper",
    ): "is called by the module: call peakward.lab.ops.flash_attention in its attention",
    (
        "attention",
        "flash-decode",
    ): "is called by the module: call peakward.lab.ops.decode_attention in its attention",
    (
        "checkpointing",
        "sqrt",
    ): "takes the loop over the blocks: use every-block, or checkpoint runs in it",
}
"""(field of `Configuration`, value) that no module takes from outside: why, and what to do instead."""
TRANSFORMERS_ALONE: dict[tuple[str, str | bool], str] = {
    ("attention", "naive"): "is the module's own choice: what it does is as-written",
    ("attention", "sdpa"): (
        "is the module's to call: where it computes softmax(q·kᵀ)·v itself, call "
        "torch.nn.functional.scaled_dot_product_attention instead"
    ),
    ("loss", "fused"): (
        "takes the logits before the loss: call peakward.lab.ops.cross_entropy in the module's own loss"
    ),
}
"""Likewise, of a module from a factory; transformers' models are built with either attention, and
their logits are scored here."""


def outside_obstacle(case: ModuleCase) -> str | None:
    """Why a setting of the case cannot be applied to its module from outside, or None."""
    inside = INSIDE if case.source.startswith("hf:") else INSIDE | TRANSFORMERS_ALONE
    for field in Configuration.__struct_fields__:
        value = getattr(case.configuration, field)
        if (field, value) in inside:
            return f"{field.replace('_', '-')} {value} {inside[field, value]}"
    work = case.workload
    if work.caches:
        return f"the pass {work.pass_} needs the decoder's key-value cache: take forward"
    if work.varying_seq_lens:
        return "varying lengths need the decoder's own batches: give one batch of each length"
    if case.configuration.cuda_graphs and case.configuration.checkpointing != "none":
        return "cuda-graphs need a step that puts no random state back, as checkpointing does"
    return None
