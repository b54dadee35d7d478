"""What can be done to a user's module from outside, and what must be changed in its own code."""

from peakward.records.case import AS_WRITTEN, CONFIGURATION_FIELDS, ModuleCase, StepCase

INSIDE: dict[tuple[str, str | bool], str] = {
    (
        "precision",
        "fp8",
    ): "is a choice of each layer: replace its nn.Linear by layers that compute in fp8",
    (
        "attention",
        "flash",
    ): "is called by the module: call peakward.kernels.flash_attention in its attention",
    (
        "attention",
        "flash-hopper",
    ): "is called by the module: call peakward.kernels.flash_attention in its attention",
    (
        "attention",
        "flash-decode",
    ): "is called by the module: call peakward.kernels.decode_attention in its attention",
    (
        "rope",
        "fused",
    ): "is called by the module: call peakward.kernels.rope in its attention",
    (
        "swiglu",
        "fused",
    ): "is called by the module: call peakward.kernels.swiglu in its feed-forward network",
    (
        "loss",
        "chunked",
    ): "has the output layer in it: call peakward.kernels.linear_cross_entropy in the module, in their place",
    (
        "loss",
        "recomputed",
    ): "has the output layer in it: call peakward.kernels.linear_cross_entropy in the module, in their place",
    (
        "weights",
        "int8",
    ): "is a choice of each layer: call peakward.kernels.int8_matmul in the place of its product",
    (
        "weights",
        "int4:128",
    ): "is a choice of each layer: call peakward.kernels.int4_matmul in the place of its product",
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
        "takes the logits before the loss: call peakward.kernels.cross_entropy in the module's own loss"
    ),
}
"""Likewise, of a module from a factory; transformers' models are built with either attention, and
their logits are scored here."""


OF_A_STEP: dict[tuple[str, str | bool], str] = {
    ("precision", "bf16-mixed"): (
        "is of the forward pass: call it and the loss in torch.autocast(device, torch.bfloat16) in the step"
    ),
    ("precision", "fp16-mixed"): (
        "is of the forward pass: call it and the loss in torch.autocast(device, torch.float16), and step "
        "through a torch.amp.GradScaler"
    ),
    ("precision", "bf16"): (
        "is of the parameters: build the model and its optimizer after model.to(torch.bfloat16), in a fresh "
        "process"
    ),
    ("precision", "fp8"): INSIDE["precision", "fp8"],
    ("attention", "sdpa"): TRANSFORMERS_ALONE["attention", "sdpa"],
    ("attention", "flash"): INSIDE["attention", "flash"],
    ("attention", "flash-hopper"): INSIDE["attention", "flash-hopper"],
    ("attention", "flash-decode"): INSIDE["attention", "flash-decode"],
    ("compile", "default"): (
        "outlasts the call: call .compile() on each repeated block of the model before the loop, in a fresh "
        "process"
    ),
    ("cuda_graphs", True): (
        "needs inputs at fixed addresses: capture the step by torch.cuda.graph in a fresh process, on "
        "buffers that each batch is copied to"
    ),
    ("optimizer", "adamw-fused"): (
        "is the optimizer's: make it with fused=True, its state built anew"
    ),
    ("optimizer", "adamw-triton"): (
        "is another optimizer: make peakward.kernels.TritonAdamW in its place, its state built anew"
    ),
    ("loss", "fused"): (
        "is called by the step: call peakward.kernels.cross_entropy in the place of its loss"
    ),
    ("loss", "chunked"): INSIDE["loss", "chunked"],
    ("loss", "recomputed"): INSIDE["loss", "recomputed"],
    ("norm", "fused"): (
        'outlasts the call: call peakward.lab.levers.fused_norms.apply(model, "fused") before the loop, in '
        "a fresh process"
    ),
    ("rope", "fused"): INSIDE["rope", "fused"],
    ("swiglu", "fused"): INSIDE["swiglu", "fused"],
    ("weights", "int8"): INSIDE["weights", "int8"],
    ("weights", "int4:128"): INSIDE["weights", "int4:128"],
    ("checkpointing", "every-block"): (
        "is called by the model: call torch.utils.checkpoint around each block in its forward pass"
    ),
}
"""Likewise, of a step given as a function: all but what torch's own settings turn on around the call."""


def step_obstacle(case: StepCase) -> str | None:
    """Why a setting cannot be applied around the call of a live step, or None."""
    for field in CONFIGURATION_FIELDS:
        value = getattr(case.configuration, field)
        if value != getattr(AS_WRITTEN, field) and (field, value) in OF_A_STEP:
            written = "on" if value is True else value
            return f"{field.replace('_', '-')} {written} {OF_A_STEP[field, value]}"
    return None


def outside_obstacle(case: ModuleCase) -> str | None:
    """Why a setting of the case cannot be applied to its module from outside, or None."""
    inside = INSIDE if case.source.startswith("hf:") else INSIDE | TRANSFORMERS_ALONE
    for field in CONFIGURATION_FIELDS:
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
