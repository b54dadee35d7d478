"""Short parts of a run's report: how to have the best, findings, and larger batches."""

import re
import shlex
from collections.abc import Sequence

from peakward.levers.in_code import in_program
from peakward.levers.in_generation import in_generation
from peakward.levers.loader import AS_GIVEN, chosen
from peakward.records.case import Case, ModelCase, ModuleCase, SpeculationCase, StepCase
from peakward.records.lever import Trial
from peakward.records.linear_layers import LinearChoice
from peakward.records.study import Conclusion, Patch, Study
from peakward.report import findings
from peakward.report.document import (
    Block,
    Code,
    Command,
    Items,
    Leaf,
    Panel,
    Paragraph,
    Section,
    TableBlock,
)
from peakward.report.format import format_cell
from peakward.report.run.investigation import RunParts
from peakward.report.run.levers import base_name
from peakward.stats.speculation import speedup

FINDINGS_TITLE = "Findings"


def first_findings(study: Study, read: RunParts) -> tuple[Block, ...]:
    """The most important findings of the best, because its levers already mended others; those of the
    baseline where the best has none."""
    by_case = {each.case: each for each in study.diagnoses}
    pulled = {name for trial in read.steps for name in trial.levers}
    for point in reversed(read.points):
        found = by_case.get(point.case)
        if found is not None and found.findings:
            # Findings of the baseline are read for what to add to the best, so both trials count.
            rejected = _rejected(study, read, point.case)
            rejected |= _rejected(study, read, read.points[-1].case)
            return findings.first(found, f"the {point.name}", pulled, rejected)
    return ()


def _rejected(study: Study, read: RunParts, case: Case | None) -> dict[str, str]:
    """The levers that a trial rejected on the case, or on the step before it; a trial on the case itself
    counts more. Each with what the trial gave: "0.815× on step 2"."""
    before = [trial.base for trial in read.steps if trial.candidate == case]
    judged: dict[str, Trial] = {}
    for base in (*before, case):
        judged |= {
            trial.lever: trial
            for trial in study.trials
            if trial.base == base and trial.time_ratio is not None
        }
    return {
        name: f"{format_cell(1 / trial.time_ratio.estimate, 'ratio')} on {base_name(trial.base, read)}"
        for name, trial in judged.items()
        if trial.verdict == "rejected" and trial.time_ratio is not None
    }


def findings_section(study: Study, read: RunParts) -> Section:
    """The baseline's diagnosis, then the best's, then the rules that could not judge; empty where the study
    has none."""
    by_case = {each.case: each for each in study.diagnoses}
    named = {
        f"the {point.name}": by_case[point.case] for point in read.points if point.case in by_case
    }
    blocks: list[Block] = []
    for name, found in named.items():
        blocks.append(Paragraph(text=f"{name.capitalize()}:"))
        blocks += findings.blocks(found, study.trials, _rejected(study, read, found.case))
    unjudged = findings.unjudged(named)
    blocks += [] if unjudged is None else [Paragraph(text=unjudged)]
    return Section(title=FINDINGS_TITLE, blocks=tuple(blocks))


BATCHES_TITLE = "Throughput by batch size"
"""The title of the table in such a study."""


GUESSES_TITLE = "Texts with guessed tokens"
"""The title of the table of guesses in such a study."""


def batches_section(study: Study) -> Section:
    """The table of batches; empty where none was measured."""
    said = [each for each in study.conclusions if not _is_of_guesses(each, study)]
    return Section(title="Larger batches", blocks=_told(study, BATCHES_TITLE, said))


def guesses_section(study: Study) -> Section:
    """The texts with guessed tokens; empty where none were made."""
    said = [each for each in study.conclusions if _is_of_guesses(each, study)]
    return Section(title="Guessed tokens", blocks=_told(study, GUESSES_TITLE, said))


def _is_of_guesses(said: Conclusion, study: Study) -> bool:
    texts = {each.id for each in study.measurements if isinstance(each.case, SpeculationCase)}
    return any(texts.intersection(each.from_ids) for each in said.evidence)


def _told(study: Study, title: str, said: Sequence[Conclusion]) -> tuple[Block, ...]:
    """The tables of that title, and what is concluded beside them."""
    tables = [table for table in study.tables if table.title == title]
    if not tables:
        return ()
    texts = tuple(each.text for each in said)
    return (
        *(TableBlock(table=table) for table in tables),
        *((Items(texts=texts),) if texts else ()),
    )


def paying_guesses(study: Study) -> SpeculationCase | None:
    """The guesses that made texts faster in the whole interval; None where none did."""
    for each in study.measurements:
        speed = speedup(each) if isinstance(each.case, SpeculationCase) else None
        if isinstance(each.case, SpeculationCase) and speed is not None and speed.low > 1:
            return each.case
    return None


def panel(study: Study, read: RunParts) -> tuple[Panel, ...]:
    """How to have the best: its diff or its lines where the code is the user's, then its command. Nothing
    where no lever was kept."""
    if read.best is None:
        return ()
    base, best = read.baseline.case, read.best.case
    blocks: list[Leaf] = []
    if study.patch is not None:
        blocks += _patch_blocks(study.patch)
    elif not isinstance(base, ModelCase) and not isinstance(best, ModelCase):
        blocks += _applied_blocks(best) if isinstance(best, StepCase) else ()
        blocks += code_blocks(base, best, read.best.linear)
        if base.name.startswith("py:") and study.command.startswith("peakward run"):
            blocks += [
                Paragraph(
                    text="Or as a diff of your files, tried beside the best before it is written:"
                ),
                Command(text=f"{study.command} --write-patch speed.patch"),
            ]
        if study.called is not None:
            blocks += [
                Paragraph(text=f"Or as a diff of {study.called.files[0][0]}, which made the call:"),
                Code(text="print(pw.patch(study))"),
            ]
    if study.real_model is not None and isinstance(best, ModelCase):
        blocks += _generation_blocks(study.real_model, best, paying_guesses(study))
    if study.best_command is not None:
        blocks += [Paragraph(text="To measure the best again:"), Command(text=study.best_command)]
    return (Panel(title="How to have it", blocks=tuple(blocks)),) if blocks else ()


PROMPT = "The capital of France is"
"""The text of the command, in the place of the reader's own."""


def _generation_blocks(
    model: str, best: ModelCase, guesses: SpeculationCase | None
) -> tuple[Leaf, ...]:
    """The command that generates with the best, or with what of it has an option there, and with guesses that
    pay."""
    if best.workload.pass_ != "decode":
        return ()
    words, left = in_generation(best.configuration, best.device)
    n_rows = best.workload.batch_size
    prompts = ["--prompt", PROMPT] if n_rows == 1 else ["--prompts", "FILE", "--rows", str(n_rows)]
    told = "" if n_rows == 1 else ", with a prompt in each line of FILE"
    which = "it"
    if left:
        which += f", except {' and '.join(left)} (peakward generate has no option for that)"
    if guesses is not None:
        words = (*words, "--guesses", str(guesses.guesses), "--draft", guesses.draft)
    line = ["peakward", "generate", "--model", model, *prompts, *words, "--device", best.device]
    return (
        Paragraph(text=f"To generate text with {which}{told}:"),
        Command(text=shlex.join(line)),
    )


def _applied_blocks(best: StepCase) -> tuple[Leaf, ...]:
    """The lines that put the best to work in a live script."""
    handles = [each for each in best.handles if each != "loader"]
    fed = ["loader=loader"] if chosen(best.configuration) != AS_GIVEN else []
    call = f"fast = pw.apply(study, {', '.join((*handles, *fed))})"
    then = "  # then train from fast.loader" if fed else ""
    return (
        Paragraph(text="Before the loop, with what pw.investigate was given and returned:"),
        Code(text=call + then),
        Paragraph(text="Or by hand, as follows."),
    )


def _patch_blocks(patch: Patch) -> tuple[Leaf, ...]:
    """The command that applies it, what it was found to give, and the diff."""
    blocks: list[Leaf] = []
    if patch.written_to is not None and patch.text:
        blocks += [
            Paragraph(text="In the folder of your files:"),
            Command(text=shlex.join(("patch", "-p1", "-i", patch.written_to))),
        ]
    if patch.best_s is not None and patch.patched_s is not None:
        blocks.append(
            Paragraph(
                text=f"The patched files were run as they are, in turn with the best: "
                f"{format_cell(patch.patched_s, 's')} a step, the best {format_cell(patch.best_s, 's')}."
            )
        )
    if patch.numerics is not None:
        errors = ", ".join(
            f"{each.quantity} {format_cell(each.candidate_error, 'count')} "
            f"(best {format_cell(each.base_error, 'count')})"
            for each in patch.numerics.errors
        )
        blocks.append(Paragraph(text=f"Errors of the patched module against fp64: {errors}."))
    if patch.left:
        blocks += [Paragraph(text="By hand:"), Items(texts=patch.left)]
    if patch.text:
        blocks.append(Code(text=patch.text.rstrip("\n"), language="diff"))
    return tuple(blocks)


def code_blocks(
    base: ModuleCase | StepCase, best: ModuleCase | StepCase, linear: LinearChoice | None = None
) -> tuple[Leaf, ...]:
    """The settings of the best that differ from the base, as code; `linear` are its layers in fp8."""
    lines = in_program(
        best.configuration,
        base.configuration,
        best.device,
        trains=not isinstance(best, ModuleCase) or best.workload.trains,
        linear=linear,
    )
    blocks: list[Leaf] = []
    if lines.once:
        blocks += [
            Paragraph(text=f"Once, in this order, after the model is built{_names(lines.once)}:"),
            Code(text="\n".join(lines.once)),
        ]
    if lines.each_step:
        blocks += [Paragraph(text="In each step:"), Code(text="\n".join(lines.each_step))]
    return tuple(blocks)


def _names(lines: tuple[str, ...]) -> str:
    """The reader's own names that stand in the lines, each with what it is."""
    told = (
        ("blocks", "`blocks` are the model's repeated blocks"),
        ("lr", "`lr` is your learning rate"),
    )
    found = [text for name, text in told if re.search(rf"(?<!\.)\b{name}\b(?!=)", " ".join(lines))]
    return f". {', '.join(found)}" if found else ""
