"""The best composition of a user's module as lines for the user's own program."""

from peakward.records.case import CONFIGURATION_FIELDS, ModuleCase
from peakward.report.document import Block, Code, Paragraph, Section

_BACKENDS = {
    "sdpa-cudnn": "CUDNN_ATTENTION",
    "sdpa-flash": "FLASH_ATTENTION",
    "sdpa-efficient": "EFFICIENT_ATTENTION",
    "sdpa-math": "MATH",
}
_AUTOCAST = {"bf16-mixed": "bfloat16", "fp16-mixed": "float16"}
_OPTIMIZERS = {
    "adamw-fused": "torch.optim.AdamW(model.parameters(), lr=lr, fused=True)",
    "adamw-foreach": "torch.optim.AdamW(model.parameters(), lr=lr, foreach=True)",
    "adamw-loop": "torch.optim.AdamW(model.parameters(), lr=lr, foreach=False)",
    "adamw-triton": "TritonAdamW(model.parameters(), lr=lr)",
}

IMPORT = "import torch"


def section(base: ModuleCase, best: ModuleCase) -> Section:
    """The settings of the best that differ from the base, as code. `blocks` is the list of the module's
    repeated blocks."""
    before, now = base.configuration, best.configuration
    chosen = {
        name: getattr(now, name)
        for name in CONFIGURATION_FIELDS
        if getattr(now, name) != getattr(before, name)
    }
    imports, settings = _imports(chosen), _once(chosen)
    once = [*imports, "", *settings] if settings else imports
    each = _each_step(chosen, best)
    blocks: list[Block] = []
    if once != [IMPORT]:
        blocks += [
            Paragraph(
                text="Once, in this order, when the model is there; `blocks` are the ones that it repeats, "
                "`lr` is your learning rate:"
            )
        ]
        blocks += [Code(text="\n".join(once))]
    if each:
        blocks += [Paragraph(text="In each step:"), Code(text="\n".join(each))]
    return Section(title="In your own code", blocks=tuple(blocks))


def _imports(chosen: dict[str, object]) -> list[str]:
    lines = [IMPORT]
    if "checkpointing" in chosen:
        lines = ["from functools import partial", "", *lines]
        lines += ["from torch.utils.checkpoint import checkpoint"]
    if chosen.get("checkpointing") == "selective":
        lines += ["from peakward.lab.levers.checkpointing import selective"]
    if chosen.get("optimizer") == "adamw-triton":
        lines += ["from peakward.kernels.ops.adamw.api import TritonAdamW"]
    if chosen.get("attention") in _BACKENDS:
        lines += ["from torch.nn.attention import SDPBackend, sdpa_kernel"]
    if "norm" in chosen:
        lines += ["from peakward.lab.levers import fused_norms"]
    if chosen.get("loss") == "fused":
        lines += ["from peakward.kernels.ops.cross_entropy.api import cross_entropy"]
    return lines


def _once(chosen: dict[str, object]) -> list[str]:
    lines = []
    if chosen.get("precision") == "tf32":
        lines.append('torch.set_float32_matmul_precision("high")')
    if chosen.get("precision") == "bf16":
        lines.append("model.to(torch.bfloat16)")
    if "norm" in chosen:
        lines.append('fused_norms.apply(model, "fused")')
    if chosen.get("attention") == "sdpa":
        lines.append('model.set_attn_implementation("sdpa")')
    if chosen.get("checkpointing", "none") != "none":
        context = ", context_fn=selective" if chosen["checkpointing"] == "selective" else ""
        again = f"partial(checkpoint, block.forward, use_reentrant=False{context})"
        lines += ["for block in blocks:", f"    block.forward = {again}"]
    if chosen.get("compile", "none") != "none":
        mode = "" if chosen["compile"] == "default" else f'mode="{chosen["compile"]}"'
        whole = chosen.get("compile_scope") == "model"
        lines += (
            [f"model.compile({mode})"]
            if whole
            else ["for block in blocks:", f"    block.compile({mode})"]
        )
    if "optimizer" in chosen:
        lines.append(f"optimizer = {_OPTIMIZERS[str(chosen['optimizer'])]}")
    if chosen.get("precision") == "fp16-mixed":
        lines.append('scaler = torch.amp.GradScaler("cuda")')
    return lines


def _each_step(chosen: dict[str, object], best: ModuleCase) -> list[str]:
    lines = []
    if chosen.get("precision") in _AUTOCAST:
        dtype = _AUTOCAST[str(chosen["precision"])]
        lines += [
            f'with torch.autocast("{best.device}", torch.{dtype}):',
            "    ...  # forward pass and loss, as they were",
        ]
    if chosen.get("attention") in _BACKENDS:
        # The backward pass is inside too, because recomputation chooses its kernel again.
        lines = [
            f"with sdpa_kernel(SDPBackend.{_BACKENDS[str(chosen['attention'])]}):",
            *(f"    {line}" for line in lines),
            "    ...  # and all else of forward and backward",
        ]
    if chosen.get("loss") == "fused":
        lines += ["loss = cross_entropy(logits, targets)"]
    if chosen.get("precision") == "fp16-mixed" and best.workload.trains:
        lines += [
            "scaler.scale(loss).backward()",
            "scaler.step(optimizer)",
            "scaler.update()",
        ]
    if chosen.get("cuda_graphs"):
        lines += [
            "# The whole step as one graph: run it three times on a side stream, capture it with",
            "# torch.cuda.graph on tensors that stay where they are, then copy each batch into them and",
            "# replay. The optimiser needs capturable=True.",
        ]
    return lines
