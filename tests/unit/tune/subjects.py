"""Modules that nobody here wrote, and what an H200 takes for their steps.

Figures are of runs of 2026-11-23 and 2026-11-26 (torch 2.11), searches and compositions by hand. What was not
measured is `reckoned`: it is there so that a search may go wrong. So are eager steps in fp8, by the ratios to
bf16-mixed that are predicted of such modules; transformers' GPT-2 has no layer for it.
"""

import msgspec

from peakward.records.case import AS_WRITTEN, ModuleCase, Workload
from peakward.records.op_graph import Operand, Operator, OpGraph

Setting = tuple[str, str | bool]
GRAPH: Setting = ("cuda_graphs", True)
MODEL: Setting = ("compile_scope", "model")
CHUNKED, FUSED_LOSS = ("loss", "chunked"), ("loss", "fused")
SDPA, CUDNN = ("attention", "sdpa"), ("attention", "sdpa-cudnn")
FLASH, HOPPER = ("attention", "flash"), ("attention", "flash-hopper")
FUSED, TRITON = ("optimizer", "adamw-fused"), ("optimizer", "adamw-triton")
BF16_STATES = ("optimizer", "adamw-bf16-states")
BLOCKS, FP8 = ("compile", "default"), ("precision", "fp8")
NO_MASKS = ("masks", "left-out")


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A module, and what its steps and the parts of a search take."""

    case: ModuleCase
    graph: OpGraph
    eager_s: dict[str, float]
    """The device's time by precision, in eager mode with AdamW over lists."""
    predicted_s: dict[str, float]
    """Of eager steps by precision."""
    predicted: dict[tuple[str, Setting], float] = {}
    """What a setting is predicted to leave, by the precision that it is on."""
    ratios: dict[Setting, float]
    """What each other setting leaves of the device's time."""
    compiled: dict[Setting, float] = {}
    """The same on a compiled step, where it differs."""
    whole: dict[Setting, float] = {}
    """The same where the whole model is compiled, where it differs."""
    host_s: float
    """The host's time for an eager step; what is not captured in a graph takes no less."""
    compiled_host_s: float
    whole_host_s: float
    more_host_s: dict[Setting, float] = {}
    """What a setting adds to the host's time."""
    refuses: frozenset[Setting] = frozenset()
    crashes: frozenset[Setting] = frozenset()
    needs_no_masks: bool = False
    """Whether a graph of compiled blocks is captured only where masks are left out."""
    build_s: float
    compile_s: float
    whole_compile_s: float
    first_s: dict[Setting, float] = {}
    """What kernels of our own take to be built for the first time."""
    check_s: float
    """One computation in a check of numbers, beside compilation."""
    profile_s: float = 10.0
    start_s: float = 9.0
    begun_s: float
    """The module's first check and the ceilings, before the baseline."""

    def step_of(self, case):
        """Returns the step time of a case."""
        settings = case.configuration.settings
        compiled, is_whole = settings.get("compile", "none") != "none", MODEL in settings.items()
        ratios = self.ratios | (self.compiled if compiled else {})
        ratios |= self.whole if compiled and is_whole else {}
        device_s = self.eager_s[settings["precision"]]
        host_s = self.host_s
        if compiled:
            host_s = self.whole_host_s if is_whole else self.compiled_host_s
        for pair in settings.items():
            device_s *= ratios.get(pair, 1.0)
            host_s += self.more_host_s.get(pair, 0.0)
        return device_s if settings.get("cuda_graphs") else max(device_s, host_s)

    def fails(self, case):
        """Returns why a case does not run, or None."""
        settings = set(case.configuration.settings.items())
        if settings & self.crashes:
            return "its worker was ended by signal 11"
        if GRAPH in settings & self.refuses:
            return "operation not permitted when stream is capturing"
        if refused := settings & self.refuses:
            part, value = min(refused)
            return f"expected a module whose {part} can become {value}, got GPT"
        blocks = ("compile", "default") in settings and MODEL not in settings
        if self.needs_no_masks and blocks and GRAPH in settings and NO_MASKS not in settings:
            return "Offset increment outside graph capture encountered unexpectedly"
        return None

    def kernel_parts_s(self, case):
        """Returns the seconds that kernels of our own take to be built, each once."""
        settings = case.configuration.settings.items()
        return {pair: self.first_s[pair] for pair in settings if pair in self.first_s}

    def compile_parts_s(self, case):
        """Returns the seconds that torch takes to compile for the first time, by what is compiled."""
        settings = case.configuration.settings
        if settings.get("compile", "none") == "none":
            return {}
        # A loss that is replaced is the whole model's, and its graph is compiled in one piece; not in
        # transformers' models, where it is beside what calls the blocks.
        is_beside = self.case.source.startswith("hf:")
        whole = MODEL in settings.items() or (settings["loss"] != "torch" and not is_beside)
        kernels = settings["precision"], whole, settings["attention"], settings["loss"]
        return {kernels: self.whole_compile_s if whole else self.compile_s}


def module_case(source, batch_size, seq_len, **configuration):
    return ModuleCase(
        source=source,
        fingerprint="0" * 16,
        workload=Workload(batch_size=batch_size, seq_len=seq_len),
        configuration=msgspec.structs.replace(AS_WRITTEN, **configuration),
        device="cuda",
    )


def operators(*, n_layers=12, written=False, drops=False, head_dim=64, loss=True):
    """A module's operators, as far as a search looks at them."""

    def operator(name, *shapes, drops=False):
        return Operator(
            name=name,
            phase="forward",
            module=None,
            inputs=tuple(Operand(shape=each, dtype="bfloat16") for each in shapes),
            outputs=(),
            flops=0,
            bytes_read=0,
            bytes_written=0,
            drops=drops,
            count=n_layers,
        )

    q, scores = (2, 12, 1024, head_dim), (2, 12, 1024, 1024)
    attention = [operator("aten._scaled_dot_product_cudnn_attention", q, q, q, drops=drops)]
    if written:
        attention = [operator("aten._softmax", scores), operator("aten.bmm", (24, *scores[2:]))]
    heads = [operator("aten.nll_loss_forward", (2048, 50304))] if loss else []
    return OpGraph.of([*attention, *heads])


NANOGPT = Subject(
    case=module_case("py:nanogpt:factory", 12, 1024),
    graph=operators(),
    eager_s={
        "fp32": 0.2347,
        "tf32": 0.0775,
        "bf16-mixed": 0.0338,
        "fp16-mixed": 0.0357,
        "bf16": 0.0269,
        "fp8": 0.0344,
    },
    predicted_s={"fp32": 0.2242, "bf16-mixed": 0.0370, "bf16": 0.0258, "fp8": 0.0376},
    # By blocks in a graph 24.4 ms, with flash-hopper and chunked-loss 22.0, with fused-loss 23.4; the whole
    # 22.95, with flash-hopper 22.47, with chunked-loss 22.4, with fused-loss 22.85, with both first 22.1.
    ratios={FUSED: 0.967, TRITON: 0.972, ("compile", "default"): 0.932, HOPPER: 0.979, FLASH: 1.0},
    compiled={MODEL: 0.942, CHUNKED: 0.921, FUSED_LOSS: 0.96},
    whole={CHUNKED: 0.978, FUSED_LOSS: 0.998},
    host_s=0.0255,
    compiled_host_s=0.0246,
    whole_host_s=0.0225,
    more_host_s={FLASH: 0.0096, HOPPER: 0.0216},
    refuses=frozenset({("norm", "fused")}),
    build_s=2.5,
    compile_s=8.5,
    whole_compile_s=25.0,
    first_s={HOPPER: 15.0, FLASH: 4.0, CHUNKED: 4.0, GRAPH: 3.0},
    check_s=2.5,
    profile_s=19.0,
    begun_s=16.0,
)
MINGPT = msgspec.structs.replace(
    NANOGPT,
    case=module_case("py:mingpt:factory", 12, 1024),
    graph=operators(written=True),
    eager_s={
        "fp32": 0.285,
        "tf32": 0.112,
        "bf16-mixed": 0.058,
        "fp16-mixed": 0.060,
        "bf16": 0.0415,
        "fp8": 0.059,
    },
    predicted_s={"fp32": 0.27, "bf16-mixed": 0.061, "bf16": 0.043, "fp8": 0.062},
    # By blocks 34.1 ms as it is written, with SDPA and fused-loss in a graph 24.5; the whole with SDPA 24.0,
    # with flash-hopper 23.75, and with chunked-loss 23.1.
    ratios={FUSED: 0.967, TRITON: 0.972, ("compile", "default"): 0.845, SDPA: 0.76, HOPPER: 0.752},
    compiled={
        MODEL: 0.941,
        SDPA: 0.748,
        CUDNN: 0.748,
        HOPPER: 0.740,
        FLASH: 0.748,
        CHUNKED: 0.916,
        FUSED_LOSS: 0.96,
    },
    whole={CHUNKED: 0.973, FUSED_LOSS: 0.998},
)
GPT2 = Subject(
    case=module_case("hf:gpt2", 12, 1024),
    graph=operators(drops=True),
    eager_s={
        "fp32": 0.240,
        "tf32": 0.095,
        "bf16-mixed": 0.060,
        "fp16-mixed": 0.062,
        "bf16": 0.0455,
        "fp8": 0.060,
    },
    predicted_s={"fp32": 0.25, "bf16-mixed": 0.058, "bf16": 0.044},
    # The whole 39.0 ms, with masks left out 33.8; in a graph with chunked-loss 31.0, with fused-loss 33.1,
    # with chunked-loss and masks left out 26. Blocks 53.1, where the host takes 53.8. Blocks in a graph
    # without such a loss: reckoned.
    ratios={FUSED: 0.96, TRITON: 0.96, ("compile", "default"): 0.98, NO_MASKS: 0.866},
    compiled={MODEL: 0.92, CHUNKED: 0.727, FUSED_LOSS: 0.789},
    whole={CHUNKED: 0.79, FUSED_LOSS: 0.858},
    host_s=0.060,
    compiled_host_s=0.0531,
    whole_host_s=0.0300,
    more_host_s={NO_MASKS: -0.0011},
    refuses=frozenset({FLASH, HOPPER, ("norm", "fused"), ("precision", "fp8")}),
    needs_no_masks=True,
    build_s=2.5,
    compile_s=10.0,
    whole_compile_s=30.0,
    first_s={CHUNKED: 4.0, GRAPH: 3.0},
    check_s=3.0,
    profile_s=19.0,
    begun_s=20.0,
)
LLAMA = Subject(
    case=module_case("hf:llama1b", 4, 2048),
    graph=operators(n_layers=16),
    eager_s={
        "fp32": 1.35,
        "tf32": 0.4907,
        "bf16-mixed": 0.2008,
        "fp16-mixed": 0.2065,
        "bf16": 0.1731,
        "fp8": 0.1785,
    },
    predicted_s={"fp32": 1.30, "bf16-mixed": 0.2189, "bf16": 0.1881, "fp8": 0.1946},
    predicted={
        ("bf16", BLOCKS): 0.786,
        ("bf16", FUSED): 0.926,
        ("bf16", TRITON): 0.912,
        ("fp8", BLOCKS): 0.731,
        ("fp8", FUSED): 0.90,
        ("fp8", TRITON): 0.859,
        ("fp8", BF16_STATES): 0.844,
    },
    # By blocks 128.8 ms; in a graph with masks left out, flash-hopper and fused-loss 115.2, with chunked-loss
    # 116.3; so in fp8 with moments in bf16 98.2. The share of each of these, and the whole with masks left
    # out: reckoned.
    ratios={
        FUSED: 0.948,
        TRITON: 0.944,
        BF16_STATES: 0.90,
        ("compile", "default"): 0.787,
        ("norm", "fused"): 0.886,
        FUSED_LOSS: 0.949,
        CHUNKED: 0.949,
        HOPPER: 0.965,
        SDPA: 1.0042,
        CUDNN: 1.0,
        ("checkpointing", "every-block"): 1.21,
    },
    compiled={
        ("norm", "fused"): 1.0,
        GRAPH: 0.98,
        FUSED_LOSS: 0.946,
        CHUNKED: 0.946,
        FP8: 0.868,
    },
    host_s=0.120,
    compiled_host_s=0.110,
    whole_host_s=0.08,
    needs_no_masks=True,
    build_s=2.5,
    compile_s=8.0,
    whole_compile_s=44.0,
    first_s={HOPPER: 15.0, CHUNKED: 4.0, GRAPH: 3.0},
    check_s=5.0,
    profile_s=21.0,
    begun_s=22.0,
)
QWEN = msgspec.structs.replace(
    LLAMA,
    case=module_case("hf:qwen2", 4, 1024),
    graph=operators(n_layers=28),
    eager_s={
        "fp32": 0.85,
        "tf32": 0.32,
        "bf16-mixed": 0.140,
        "fp16-mixed": 0.143,
        "bf16": 0.1130,
        "fp8": 0.126,
    },
    predicted_s={"fp32": 0.83, "bf16-mixed": 0.150, "bf16": 0.118, "fp8": 0.135},
    predicted={
        ("bf16", BLOCKS): 0.785,
        ("bf16", FUSED): 0.90,
        ("bf16", TRITON): 0.88,
        ("fp8", BLOCKS): 0.743,
        ("fp8", FUSED): 0.87,
        ("fp8", TRITON): 0.82,
        ("fp8", BF16_STATES): 0.80,
    },
    # Blocks 91.9 ms, where the host takes 89; masks left out 86; in a graph with fused-loss 78.0, with
    # chunked-loss and flash-hopper 76.8; so in fp8 with moments in bf16 68.1. Predictions of forms of the
    # optimizer and the share of each of these: reckoned.
    ratios={FUSED: 0.948, TRITON: 0.944, BF16_STATES: 0.87, BLOCKS: 0.787, HOPPER: 1.0},
    compiled={FUSED_LOSS: 0.93, CHUNKED: 0.94, FP8: 0.856},
    host_s=0.105,
    compiled_host_s=0.089,
    whole_host_s=0.089,
    more_host_s={NO_MASKS: -0.012},
    whole_compile_s=67.0,
    compile_s=12.0,
    check_s=6.0,
)
LLAMA_FROM_BF16 = msgspec.structs.replace(
    LLAMA, case=module_case("hf:llama1b", 4, 2048, precision="bf16")
)
