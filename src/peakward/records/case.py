"""Cases: a pass of a model or of a user's module, one operator, or a small piece of code.

A case is a value: it is hashable, and equal cases have equal keys, so stored results are found again. It
holds the settings that levers made (`levers.catalogue`), never the names of the levers.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from peakward.records.layout import Layout
from peakward.records.model_shape import ModelShape
from peakward.records.result import Result

Tokenise = Literal["cached", "on-the-fly"]
"""`cached` tokenises once before the first step, into a file that is mapped into memory. `on-the-fly`
tokenises each sequence when it is requested, like a loader that keeps text."""
Sampler = Literal["per-rank", "same"]
"""`per-rank` deals an epoch's sequences out among the ranks. `same` lets every rank read all of them."""
Precision = Literal["fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16", "fp8"]
DecoderAttention = Literal[
    "naive",
    "sdpa",
    "sdpa-cudnn",
    "sdpa-flash",
    "sdpa-efficient",
    "sdpa-math",
    "flash",
    "flash-hopper",
    "flash-decode",
]
"""`sdpa…` are torch's, `flash…` Peakward's own kernels."""
Attention = Literal[DecoderAttention, "as-written"]
"""`as-written` is the attention that a user's module brings."""
Compile = Literal["none", "default", "reduce-overhead", "max-autotune"]
CompileScope = Literal["block", "model"]
Optimizer = Literal[
    "adamw-loop",
    "adamw-foreach",
    "adamw-fused",
    "adamw-triton",
    "adamw-bf16-states",
    "adamw-8bit-states",
]
"""The first three are torch's. The last two hold the moments of fp32 parameters in fewer bits."""
Checkpointing = Literal["none", "sqrt", "every-block", "selective"]
Loss = Literal["torch", "fused", "chunked", "recomputed"]
"""How the loss is computed. `torch` is torch's cross-entropy on logits, `fused` Peakward's own kernel, which
writes the gradient over them. `chunked` and `recomputed` include the output layer, so all logits never exist
at once: the first works on chunks of tokens, the second computes the logits once more."""
Written = Literal["torch", "fused"]
"""How norms, RoPE or SwiGLU run: as torch's operators, or in a kernel of Peakward's own."""
StoredWeights = Literal["dense", "int8", "int4:128", "int4:128-calibrated", "int4:32-calibrated"]
"""How the matrices of attention and of the feed-forward networks are stored: in the parameters' type, in 8
bits with a scale for each output, or in 4 with one for every 128 inputs of an output."""
KeptCache = Literal["none", "static", "int8", "fp8"]
"""How a decode step keeps the keys and values of earlier tokens: not at all (it computes all of them again),
in the compute type, or in a byte an element with a scale for each key and each value of a head."""
GenerationCache = Literal["static", "int8"]
"""Keys and values in the type of weights, or in a byte an element with a scale for each head's."""
GenerationPrecision = Literal["fp32", "tf32", "bf16"]
"""The precisions of a step that take one type for all that is not quantised."""
DecodeStep = Literal["fused", "separate"]
"""A step of decode in Peakward's fused kernels, or operator by operator."""


class Configuration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the work is carried out: one field for each axis that levers set. The defaults are the baseline."""

    precision: Precision = "fp32"
    attention: Attention = "naive"
    compile: Compile = "none"
    compile_scope: CompileScope = "block"
    cuda_graphs: bool = False
    """One CUDA graph of the whole step, captured by Peakward (not torch's `reduce-overhead`)."""
    optimizer: Optimizer = "adamw-foreach"
    checkpointing: Checkpointing = "none"
    loss: Loss = "torch"
    """How passes that train compute the loss."""
    norm: Written = "torch"
    """RMSNorm and LayerNorm. A fused norm also adds the residual before it where both have one type."""
    rope: Written = "torch"
    """Fused RoPE rotates queries and keys in the projection's own memory."""
    swiglu: Written = "torch"
    weights: StoredWeights = "dense"
    """Passes without gradients multiply by quantised weights in Peakward's own kernel."""
    kv_cache: KeptCache = "static"
    more: tuple[tuple[str, str], ...] = ()
    """Settings on axes that have no field here, sorted by axis; a default is never among them."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "more", tuple(sorted(dict(self.more).items())))

    @property
    def settings(self) -> dict[str, str | bool]:
        """The value on each axis. Axes without a field appear only where they differ from their default."""
        fields = (name for name in self.__struct_fields__ if name != "more")
        return {name: getattr(self, name) for name in fields} | dict(self.more)

    def with_settings(self, settings: Mapping[str, str | bool]) -> "Configuration":
        """This configuration with other values on some axes; an axis without a field goes to `more`."""
        changed: dict[str, object] = {
            name: value for name, value in settings.items() if name in CONFIGURATION_FIELDS
        }
        more = {name: str(value) for name, value in settings.items() if name not in changed}
        changed["more"] = tuple({**dict(self.more), **more}.items())
        return msgspec.structs.replace(self, **changed)


CONFIGURATION_FIELDS = tuple(name for name in Configuration.__struct_fields__ if name != "more")
"""The axes that have a field of their own."""


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text or a tokenizer: a name that `peakward.lab.data` knows, or an absolute path."""

    name: str
    digest: str | None = None
    """A hash of the path's content. None for a name, because an installed package settles its content."""


class TextData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Documents that are tokenised, packed end to end into sequences, and loaded while steps run.

    The sequences are those of rank 0 of `n_ranks`. The workload's seed shuffles them anew in every epoch.
    """

    text: Source
    tokenizer: Source = Source("bytes")
    tokenise: Tokenise = "cached"
    n_workers: int = 0
    """Processes that prepare batches ahead of time. 0: each batch is made on request, between steps."""
    pin_memory: bool = False
    """Batches lie in page-locked memory, from which a GPU copies without the CPU."""
    non_blocking: bool = False
    """The host continues while batches are copied to the device."""
    n_ranks: int = 1
    sampler: Sampler = "per-rank"


ModulePass = Literal["forward", "forward_backward", "train_step"]
"""The passes of any module. The other passes need a decoder that keeps keys and values."""
Pass = Literal[ModulePass, "prefill", "decode"]
OperatorPass = Literal["forward", "backward", "forward_backward"]
"""`backward` runs again and again through one graph, which is kept."""
OperatorAttention = Literal[DecoderAttention, "flex"]
"""`flex` is torch's FlexAttention, compiled by itself."""
Padding = Literal["none", "to-seq-len"]
DeviceType = Literal["cpu", "cuda"]
MicroSubject = Literal[
    "softmax",
    "rms-norm",
    "cross-entropy",
    "matmul",
    "matmul-operands",
    "addition",
    "heads",
    "projection",
    "view",
    "matmul-formats",
    "scores",
    "sum",
    "dot",
    "variance",
    "stored-weights",
]
"""The subjects of pieces of code. All pieces of one subject compute the same."""
MicroPrecision = Literal["fp64", "fp32", "tf32", "bf16"]


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step's work. Its tokens are uniform random ids drawn from `seed`, unless `data` says otherwise."""

    batch_size: int
    """Sequences in one micro-batch."""
    seq_len: int
    """The sequence length. For `decode`: the positions that each new token attends to, itself included."""
    pass_: Pass = msgspec.field(default="train_step", name="pass")
    accumulate: int = 1
    """Micro-batches whose gradients are summed before the optimiser runs."""
    varying_seq_lens: tuple[int, ...] = ()
    """Lengths that successive steps cycle through, none above `seq_len`; empty: always `seq_len`."""
    padding: Padding = "none"
    """`to-seq-len` pads every batch of a varying length to `seq_len`, so shapes never change."""
    seed: int = 0
    data: TextData | None = None
    """Real text that a loader reads while steps run. None: random tokens that already lie on the device."""

    @property
    def trains(self) -> bool:
        """Whether gradients are computed."""
        return self.pass_ in ("forward_backward", "train_step")

    @property
    def caches(self) -> bool:
        """Whether keys and values are kept in a cache and logits are computed only at the last position."""
        return self.pass_ in ("prefill", "decode")

    @property
    def tokens_per_step(self) -> float:
        """Tokens that count in one step, averaged over a cycle of lengths. Padding does not count."""
        if self.pass_ == "decode":
            return float(self.batch_size)
        lengths = self.varying_seq_lens or (self.seq_len,)
        return self.batch_size * self.accumulate * sum(lengths) / len(lengths)


class ModelCase(
    Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="model"
):
    """A pass of a model over a workload on a device."""

    model: ModelShape
    workload: Workload
    configuration: Configuration = Configuration()
    device: DeviceType
    memory_limit_bytes: int | None = None
    """Above it the case is `oom`: reserved bytes on CUDA, the process's data on a CPU."""

    @property
    def name(self) -> str:
        """The model's name, for tables."""
        return self.model.name

    @property
    def tokens_per_step(self) -> float:
        """The workload's tokens per step."""
        return self.workload.tokens_per_step


AS_WRITTEN = Configuration(attention="as-written")
"""The baseline of a user's module: only its optimiser is chosen here."""


class ModuleCase(
    Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="module"
):
    """A pass of a user's module, which the worker builds from its source."""

    source: str
    """`py:package.module:factory`, `hf:` and a transformers configuration, or `live:` and the name of a
    module that exists in one process only."""
    fingerprint: str
    """A hash of the source's files or configuration: stored results are reused only while it is unchanged."""
    workload: Workload
    configuration: Configuration = AS_WRITTEN
    device: DeviceType
    memory_limit_bytes: int | None = None

    @property
    def name(self) -> str:
        """The source, for tables."""
        return self.source

    @property
    def tokens_per_step(self) -> float:
        """The workload's tokens per step."""
        return self.workload.tokens_per_step


class OperatorCase(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="operator"
):
    """Causal attention alone, on random (batch, heads, seq_len, head_dim) queries, keys and values."""

    operator: Literal["attention"] = "attention"
    batch_size: int
    n_heads: int
    seq_len: int
    head_dim: int
    pass_: OperatorPass = msgspec.field(default="forward", name="pass")
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    attention: OperatorAttention = "naive"
    compile: Compile = "none"
    device: DeviceType
    memory_limit_bytes: int | None = None
    seed: int = 0


class MicroCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="micro"):
    """A small piece of code of `lab/micro` on random inputs. It is not part of a model."""

    subject: MicroSubject
    piece: str
    """The piece's name in the subject's module of `lab/micro`."""
    sizes: tuple[int, ...]
    """The sizes of the inputs. The subject's module says what each means."""
    precision: MicroPrecision = "fp32"
    device: DeviceType
    memory_limit_bytes: int | None = None
    seed: int = 0


class SpeculationCase(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="speculation"
):
    """Texts of a real model behind the first of a list of prompts (`lab/inference/speed.py`), one at a time,
    with guessed tokens and without in turns. No text ends before its last token."""

    model: str
    """As `peakward generate` takes it."""
    draft: str
    """The source of guesses, as `peakward generate` takes it."""
    guesses: int
    """The tokens that a step guesses and checks."""
    n_prompts: int
    n_new_tokens: int
    """The tokens of each text."""
    temperature: float = 0.0
    precision: GenerationPrecision | None = None
    """The type that passes compute in; None: the one that a generation on the device takes by itself."""
    weights: StoredWeights = "dense"
    kv_cache: GenerationCache = "static"
    decode_step: DecodeStep = "separate"
    """How each pass over new tokens is made, with guesses and without."""
    device: DeviceType
    memory_limit_bytes: int | None = None
    seed: int = 0


QualitySubject = Literal["cache", "positions", "weights", "levers"]
"""The things compared by a model's loss: caches or stored weights of a real one, kinds of positions of one
that is trained, levers that keep weights or a cache in fewer bits."""


class QualityCase(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="quality"
):
    """The loss of a language model on real text, in one of several ways that are compared (`lab/quality`)."""

    subject: QualitySubject
    way: str
    """One of those in the subject's module of `lab/quality`."""
    sizes: tuple[int, ...]
    """The subject's module says what each means."""
    text: Source
    model: str | None = None
    """A real model, as `peakward generate` takes it; None of a subject that trains its own."""
    device: DeviceType
    memory_limit_bytes: int | None = None
    seed: int = 0


class CollectivesCase(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="collectives"
):
    """Every collective at each size between the ranks of a job: NCCL on GPUs, gloo on a CPU. Its steps are
    the repeats of the largest all-reduce."""

    n_ranks: int
    sizes_bytes: tuple[int, ...]
    device: DeviceType
    memory_limit_bytes: None = None


class LayoutCase(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="layout"
):
    """A training step of the reference decoder, or of a user's module, that the ranks of a job share. Every
    layout of as many ranks has the same batch: the workload's for each rank."""

    model: ModelShape | None = None
    """None of a module."""
    source: str | None = None
    fingerprint: str | None = None
    """Both are those of a `ModuleCase`, None of the reference decoder."""
    workload: Workload
    configuration: Configuration = Configuration()
    """With `compile` other than none each block is compiled by itself."""
    layout: Layout
    device: DeviceType
    memory_limit_bytes: int | None = None
    """The most that torch's allocator gives out on each rank's GPU."""

    @property
    def name(self) -> str:
        """The model's name or the module's source, for tables."""
        return self.of_one_rank.name

    @property
    def tokens_per_step(self) -> float:
        """The tokens of all ranks."""
        return self.workload.tokens_per_step * self.layout.n_ranks

    @property
    def of_one_rank(self) -> "ModelCase | ModuleCase":
        """The step of one rank by itself, which its model FLOPs are those of."""
        kind = ModelCase if self.source is None else ModuleCase
        return kind(**{name: getattr(self, name) for name in kind.__struct_fields__})


RanksCase = CollectivesCase | LayoutCase
"""Cases of several processes, which a job of ranks answers in the place of a worker."""
NumericsSubject = Literal["types", "operators", "rounding", "drift", "hunt"]
Handle = Literal["model", "optimizer", "loader"]


class NumericsCase(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="numerics"
):
    """Types under autocast, rounding, distance from fp64, or a run to NaN, seen once (`lab/numerics`)."""

    subject: NumericsSubject
    way: str
    sizes: tuple[int, ...] = ()
    model: ModelShape | None = None
    text: Source | None = None
    device: DeviceType
    memory_limit_bytes: int | None = None
    seed: int = 0


class StepCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="step"):
    """A step given as a live function. It cannot be rebuilt elsewhere from this description."""

    name: str
    fingerprint: str
    """A hash of the function's source, and of the module's parameters where a module was given. An
    investigated step has a unique one, because the values that a function holds cannot be compared."""
    device: DeviceType
    tokens_per_step: float | None = None
    handles: tuple[Handle, ...] = ()
    """The things that were given beside the function, by which levers reach into the step."""
    written: Configuration = AS_WRITTEN
    """The step as the user wrote it, as far as it was seen."""
    waits: tuple[str, ...] = ()
    """The lines of the user's code at which each step waits for the GPU, as `file.py:7: loss.item()`."""
    configuration: Configuration = AS_WRITTEN

    @property
    def memory_limit_bytes(self) -> None:
        """None, because the process is the user's own."""


ConfiguredCase = ModelCase | ModuleCase
"""Cases with a workload that runs under a configuration."""
BuiltCase = (
    ConfiguredCase
    | OperatorCase
    | MicroCase
    | QualityCase
    | SpeculationCase
    | NumericsCase
    | RanksCase
)
"""Cases that can be built from their description."""
LeverCase = ConfiguredCase | StepCase
"""Cases that at least one lever applies to."""
Case = BuiltCase | StepCase
