"""Short sections of a run's report: findings, larger batches, and the best composition as the user's code."""

from collections.abc import Mapping

from peakward.levers.axis import Code as Lines
from peakward.levers.registry import AXES
from peakward.records.case import ModuleCase
from peakward.records.study import Study
from peakward.report import findings
from peakward.report.document import Block, Code, Items, Paragraph, Section, TableBlock
from peakward.report.run.investigation import RunParts

FINDINGS_TITLE = "Findings"


def first_findings(study: Study, read: RunParts) -> tuple[Block, ...]:
    """The most important findings of the best, because its levers already mended others; those of the
    baseline where the best has none."""
    by_case = {each.case: each for each in study.diagnoses}
    pulled = {trial.lever for trial in read.steps}
    for point in reversed(read.points):
        found = by_case.get(point.case)
        if found is not None and found.findings:
            return findings.first(found, f"the {point.name}", pulled)
    return ()


def findings_section(study: Study, read: RunParts) -> Section:
    """The baseline's diagnosis, then the best's; empty where the study has none."""
    by_case = {each.case: each for each in study.diagnoses}
    blocks: list[Block] = []
    for point in read.points:
        found = by_case.get(point.case)
        if found is not None:
            blocks.append(Paragraph(text=f"The {point.name}:"))
            blocks += findings.blocks(found, study.trials)
    return Section(title=FINDINGS_TITLE, blocks=tuple(blocks))


BATCHES_TITLE = "Throughput by batch size"
"""The title of the table in such a study."""


def batches_section(study: Study) -> Section:
    """The table of batches; empty where none was measured."""
    tables = [table for table in study.tables if table.title == BATCHES_TITLE]
    said = tuple(each.text for each in study.conclusions) if tables else ()
    blocks = (
        *(TableBlock(table=table) for table in tables),
        *((Items(texts=said),) if said else ()),
    )
    return Section(title="Larger batches", blocks=blocks)


_AUTOCAST = {"bf16-mixed": "bfloat16", "fp16-mixed": "float16"}
IMPORT = "import torch"


def code_section(base: ModuleCase, best: ModuleCase) -> Section:
    """The settings of the best that differ from the base, as code. `blocks` is the list of the module's
    repeated blocks."""
    before, now = base.configuration.settings, best.configuration.settings
    chosen = {name: value for name, value in now.items() if value != before.get(name)}
    codes = {
        axis.name: axis.code[chosen[axis.name]]
        for axis in AXES
        if axis.name in chosen and chosen[axis.name] in axis.code
    }
    imports, settings = _imports(chosen, codes), _once(chosen, codes)
    once = [*imports, "", *settings] if settings else imports
    each = _each_step(chosen, codes, best)
    blocks: list[Block] = []
    if once != [IMPORT]:
        blocks += [
            Paragraph(
                text="Once, in this order, after the model is built. `blocks` are the model's "
                "repeated blocks, `lr` is your learning rate:"
            )
        ]
        blocks += [Code(text="\n".join(once))]
    if each:
        blocks += [Paragraph(text="In each step:"), Code(text="\n".join(each))]
    return Section(title="In your own code", blocks=tuple(blocks))


def _imports(chosen: Mapping[str, object], codes: Mapping[str, Lines]) -> list[str]:
    lines = [IMPORT]
    if "checkpointing" in chosen:
        lines = ["from functools import partial", "", *lines]
        lines += ["from torch.utils.checkpoint import checkpoint"]
    if chosen.get("checkpointing") == "selective":
        lines += ["from peakward.lab.levers.compilation import selective"]
    return lines + [line for code in codes.values() for line in code.imports]


def _once(chosen: Mapping[str, object], codes: Mapping[str, Lines]) -> list[str]:
    """The optimizer comes last: what stands before it may replace parameters."""
    lines = []
    if chosen.get("precision") == "tf32":
        lines.append('torch.set_float32_matmul_precision("high")')
    if chosen.get("precision") == "bf16":
        lines.append("model.to(torch.bfloat16)")
    lines += [line for name, code in codes.items() if name != "optimizer" for line in code.once]
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
    lines += codes["optimizer"].once if "optimizer" in codes else ()
    if chosen.get("precision") == "fp16-mixed":
        lines.append('scaler = torch.amp.GradScaler("cuda")')
    return lines


def _each_step(
    chosen: Mapping[str, object], codes: Mapping[str, Lines], best: ModuleCase
) -> list[str]:
    lines = []
    if chosen.get("precision") in _AUTOCAST:
        dtype = _AUTOCAST[str(chosen["precision"])]
        lines += [
            f'with torch.autocast("{best.device}", torch.{dtype}):',
            "    ...  # forward pass and loss, as they were",
        ]
    for code in codes.values():
        if code.around_step is not None:
            lines = [
                code.around_step,
                *(f"    {line}" for line in lines),
                "    ...  # and the rest of forward and backward",
            ]
    lines += [line for code in codes.values() for line in code.each_step]
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
