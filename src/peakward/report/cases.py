"""Cases and reasons in words that are short enough for a table's first column."""

import re

from peakward.levers.registry import at_work
from peakward.records.case import (
    AS_WRITTEN,
    Case,
    CollectivesCase,
    Configuration,
    LayoutCase,
    LeverCase,
    MicroCase,
    ModelCase,
    ModuleCase,
    NumericsCase,
    OperatorCase,
    QualityCase,
    SpeculationCase,
    StepCase,
    TextData,
    Workload,
)
from peakward.records.layout import Layout
from peakward.records.model_shape import ModelShape
from peakward.report.format import format_cell


def label(case: Case) -> str:
    """The case in one line: "2.7B 4 × 512 train_step, bf16, sdpa"."""
    match case:
        case ModelCase() | ModuleCase():
            words = (f"{case.name} {workload(case.workload)}", *settings(case))
        case OperatorCase():
            shape = f"{case.batch_size} × {case.n_heads} × {case.seq_len} × {case.head_dim}"
            compiled = () if case.compile == "none" else (f"compile {case.compile}",)
            words = (f"{case.operator} {shape} {case.pass_}", case.precision, case.attention)
            words += compiled
        case MicroCase():
            shape = " × ".join(map(str, case.sizes))
            words = (f"{case.subject} {shape}", case.piece, case.precision)
        case SpeculationCase():
            texts = f"{case.n_prompts} texts of {case.n_new_tokens} tokens"
            words = (f"{case.model}, {texts}", f"{case.guesses} guessed by {case.draft}")
            words += (f"temperature {case.temperature:g}",) if case.temperature else ()
            words += (case.precision,) if case.precision else ()
            words += (f"{case.weights} weights",) if case.weights != "dense" else ()
            words += (f"{case.kv_cache} KV cache",) if case.kv_cache != "static" else ()
            words += ("fused step of decode",) if case.decode_step == "fused" else ()
        case QualityCase():
            shape = " × ".join(map(str, case.sizes))
            whose = "" if case.model is None else f" of {case.model}"
            words = (f"{case.subject} {shape}{whose}", case.way, f"on {case.text.name}")
        case CollectivesCase():
            backend = "NCCL" if case.device == "cuda" else "gloo"
            words = (f"collectives of {case.n_ranks} ranks over {backend}",)
        case LayoutCase():
            words = (
                f"{case.name} {workload(case.workload)}",
                layout(case.layout),
                *settings(case.of_one_rank),
            )
        case NumericsCase():
            shape = " × ".join(map(str, case.sizes))
            whose = "" if case.model is None else f" of {case.model.name}"
            words = (f"{case.subject}{whose}{shape and f' {shape}'}", case.way)
            words += (f"seed {case.seed}",) if case.seed else ()
        case StepCase():
            return ", ".join((case.name, *settings(case)[1:]))
    if case.memory_limit_bytes is not None:
        words += (f"at most {format_cell(case.memory_limit_bytes, 'bytes')}",)
    return ", ".join(words)


def layout(of: Layout) -> str:
    """The axes, and what is not as it is without being asked for: "ddp 4, buckets of 25 MB"."""
    words = [of.name]
    if of.n_ranks == 1 and of.data != "ddp":
        words = [f"{of.data} of one rank"]
    if of.bucket_mb is not None:
        words.append("each by itself" if of.bucket_mb == 0 else f"buckets of {of.bucket_mb:g} MB")
    if of.find_unused:
        words.append("unused parameters looked for")
    if of.wrap == "whole":
        words.append("gathered as a whole")
    if of.blocks_together > 1:
        words.append(f"{of.blocks_together} blocks gathered at once")
    if of.captured:
        words.append("as one CUDA graph")
    if of.pp > 1:
        words.append(f"{of.schedule}, {of.n_micro_batches} micro-batches")
    if of.stages_per_rank > 1:
        words.append(f"{of.stages_per_rank} stages a rank")
    return ", ".join(words)


def model(shape: ModelShape, n_parameters: int | None) -> str:
    """The model's name, parameters and sizes. A mixture of experts also shows its active parameters."""
    mixed = shape.n_experts > 1
    experts = f"{shape.n_experts} experts of which {shape.n_active_experts} active, "
    sizes = (
        f"{shape.n_layers} layers, d_model {shape.d_model}, d_ff {shape.d_ff}, "
        f"{experts if mixed else ''}{shape.n_heads} heads, vocabulary {shape.vocab_size:,}"
    )
    if n_parameters is None:
        return f"{shape.name} ({sizes})"
    active = f", {n_parameters - shape.idle_parameters:,} active" if mixed else ""
    return f"{shape.name}, {n_parameters:,} parameters{active} ({sizes})"


def workload(work: Workload) -> str:
    """Batch, sequence length and pass: "4 × 512 train_step, 2 micro-batches"."""
    words = [f"{work.batch_size} × {work.seq_len} {work.pass_}"]
    if work.accumulate > 1:
        words.append(f"{work.accumulate} micro-batches")
    if work.varying_seq_lens:
        lengths = sorted(work.varying_seq_lens)
        padding = " padded" if work.padding == "to-seq-len" else ""
        words.append(f"lengths {lengths[0]} to {lengths[-1]}{padding}")
    if work.data is not None:
        words += [feed(work.data), loader(work.data)]
    return ", ".join(words)


def feed(data: TextData) -> str:
    """Text, tokenizer and time of tokenising: "kjv by gpt2 on the fly". A path is cut to its last part."""
    names = (each.name.rpartition("/")[2] for each in (data.text, data.tokenizer))
    return f"{' by '.join(names)} {data.tokenise.replace('-', ' ')}"


def loader(data: TextData) -> str:
    """Workers, copies and ranks: "2 workers, pinned, non-blocking"."""
    words = [f"{data.n_workers} worker{'' if data.n_workers == 1 else 's'}", *copies(data)]
    if data.n_ranks > 1:
        words.append(f"rank 0 of {data.n_ranks}, sampler {data.sampler}")
    return ", ".join(words)


def copies(data: TextData) -> tuple[str, ...]:
    """The settings of the copy to the device that differ from the default."""
    return tuple(
        name
        for name, chosen in (("pinned", data.pin_memory), ("non-blocking", data.non_blocking))
        if chosen
    )


def parts(configuration: Configuration) -> dict[str, str]:
    """How each part of the model is computed that is not computed as torch does: {"norm": "fused"}."""
    return {
        axis.called or axis.name: str(value)
        for axis, value in at_work(configuration)
        if axis.called is not None or not axis.is_field
    }


def settings(case: LeverCase) -> tuple[str, ...]:
    """How the work is carried out: precision, attention, compilation, then the other settings. For a live
    step what differs from the step as it was written."""
    if isinstance(case, StepCase):
        plain = _settings(AS_WRITTEN, trains=True)
        changed = (each for each in _settings(case.configuration, trains=True) if each not in plain)
        return ("as written", *changed)
    return _settings(case.configuration, trains=case.workload.pass_ == "train_step")


ALWAYS_TOLD = ("precision", "attention", "compile", "compile_scope", "optimizer")
"""The axes whose value stands in `settings` whatever it is."""


def changes(case: LeverCase, base: LeverCase) -> str:
    """The settings in which a case differs from its base: "bf16 + static KV cache". `settings` leaves
    defaults out; a default that the base departs from is told here."""
    common = settings(base)
    told = [each for each in settings(case) if each not in common]
    for axis, _ in at_work(base.configuration):
        value = axis.value(case.configuration)
        if value == axis.default and axis.name not in ALWAYS_TOLD:
            name = axis.called or axis.name.replace("_", "-")
            told.append(f"{'no' if value in (False, 'none') else value} {name}")
    return " + ".join(told)


def _settings(configuration: Configuration, *, trains: bool) -> tuple[str, ...]:
    compiled = {"none": "eager", "default": "compile"}.get(
        configuration.compile, f"compile {configuration.compile}"
    )
    if configuration.compile != "none" and configuration.compile_scope == "model":
        compiled += " of the whole model"
    attention = configuration.attention
    attended = "attention as written" if attention == "as-written" else f"{attention} attention"
    words = [configuration.precision, attended, compiled]
    if configuration.cuda_graphs:
        words.append("cuda-graphs")
    if trains:
        words.append(configuration.optimizer)
    if configuration.checkpointing != "none":
        words.append(f"checkpointing {configuration.checkpointing}")
    words += (worded(part, value) for part, value in parts(configuration).items())
    return tuple(words)


def worded(part: str, value: str) -> str:
    """The value of a part in words: "fused norm", "no KV cache"."""
    return f"{'no' if value == 'none' else value} {part}"


SIZE = r"([\d.]+ [KMG]iB)"
TORCH_OUT_OF_MEMORY = re.compile(
    rf"CUDA out of memory\. Tried to allocate {SIZE}\..*?"
    rf"(?:{SIZE} allowed; )?Of the allocated memory {SIZE} is allocated by PyTorch"
)
CAPACITY = re.compile(rf"total capacity of {SIZE}")


def brief(reason: str | None) -> str | None:
    """Torch's paragraph about CUDA memory in one line; any other reason unchanged."""
    if reason is None or "CUDA out of memory. " not in reason:
        return reason
    found = TORCH_OUT_OF_MEMORY.search(reason)
    if found is None:
        return reason.partition(". ")[0].removeprefix("torch.OutOfMemoryError: ")
    wanted, allowed, allocated = found.groups()
    capacity = CAPACITY.search(reason)
    of = f" of {allowed} allowed" if allowed else f" of {capacity[1]}" if capacity else ""
    return f"CUDA out of memory: tried to allocate {wanted} with {allocated} allocated{of}"
