"""Programs in which nothing is to be found."""

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from faults.decoder import SIZES, decoder, optimizer, tokens, training
from faults.generation import generated
from faults.lab import Lab, Step
from faults.records import Clean, Seen
from peakward.models.presets import model
from peakward.records.case import Configuration, ModelCase, Pass, Workload


def _reference(pass_: Pass) -> Callable[[Lab], Seen]:
    """The reference decoder, well configured."""

    def observe(lab: Lab) -> Seen:
        on_gpu = lab.device == "cuda"
        good = Configuration(
            precision="bf16" if on_gpu else "fp32",
            attention="sdpa",
            compile="default",
            optimizer="adamw-fused",
            cuda_graphs=on_gpu,
        )
        work = Workload(
            batch_size=16 if on_gpu else 2, seq_len=1024 if on_gpu else 128, pass_=pass_
        )
        case = ModelCase(
            model=model("small" if on_gpu else "tiny"),
            workload=work,
            configuration=good,
            device=lab.device,
        )
        return lab.case(case)

    return observe


def _sizes(lab: Lab) -> dict[str, int]:
    if lab.device == "cuda":
        return {"hidden": 2048, "layers": 4, "heads": 16, "vocab": 8192, "batch": 8, "length": 1024}
    return {"hidden": 512, "layers": 2, "heads": 8, "vocab": 512, "batch": 1, "length": 256}


CONFIGS: dict[str, Callable[[dict[str, int]], transformers.PreTrainedConfig]] = {
    "GPT-2": lambda of: transformers.GPT2Config(
        vocab_size=of["vocab"], n_embd=of["hidden"], n_layer=of["layers"], n_head=of["heads"],
        n_positions=of["length"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    ),
    "Llama": lambda of: transformers.LlamaConfig(**_llama(of)),
    "Qwen2": lambda of: transformers.Qwen2Config(**_llama(of)),
    "Mixtral": lambda of: transformers.MixtralConfig(**_llama(of), num_local_experts=4),
}  # fmt: skip


def _llama(of: dict[str, int]) -> dict[str, int]:
    return {
        "vocab_size": of["vocab"],
        "hidden_size": of["hidden"],
        "intermediate_size": 4 * of["hidden"],
        "num_hidden_layers": of["layers"],
        "num_attention_heads": of["heads"],
        "num_key_value_heads": of["heads"] // 2,
    }


class Logits(nn.Module):
    """Of a transformers model, without a cache; compiled, for it writes norms out in formulas."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, length) to (batch, length, vocabulary)."""
        return self.whole(ids, use_cache=False).logits


def _transformers(name: str) -> Callable[[Lab], Seen]:
    def observe(lab: Lab) -> Seen:
        of = _sizes(lab)

        def build() -> Step:
            dtype = torch.bfloat16 if lab.device == "cuda" else torch.float32
            with torch.device(lab.device):
                whole = transformers.AutoModelForCausalLM.from_config(
                    CONFIGS[name](of), attn_implementation="sdpa", dtype=dtype
                )
                ids = torch.randint(of["vocab"], (of["batch"], of["length"] + 1))
            made = torch.compile(Logits(whole.train()))
            return training(made, ids)

        return lab.traced(build, name=name.lower())

    return observe


def _plain(lab: Lab) -> Seen:
    sizes = SIZES[lab.device]
    return lab.traced(
        lambda: training(decoder(sizes, lab.device), tokens(sizes, lab.device)), name="decoder"
    )


def _evaluated(lab: Lab) -> Seen:
    sizes = SIZES[lab.device]

    def build() -> Step:
        made, ids = decoder(sizes, lab.device), tokens(sizes, lab.device)
        return torch.no_grad()(lambda: made(ids[:, :-1]))

    return lab.traced(build, name="evaluation")


def _regression(
    name: str, make: Callable[[int], nn.Module], shape: Callable[[int, int], tuple[int, ...]]
) -> Clean:
    """A training loop on random numbers towards others; on a GPU compiled with its loss. Operator by
    operator 18% of the encoder's step there and 36% of the convolutions' are sums, copies and the loss,
    as BW001 and BW002 said of them."""

    def observe(lab: Lab) -> Seen:
        width, n = (4096, 8192) if lab.device == "cuda" else (512, 256)
        dtype = torch.bfloat16 if lab.device == "cuda" else torch.float32

        def build() -> Step:
            with torch.device(lab.device):
                made = make(width).to(dtype)
                given = torch.randn(shape(n, width), dtype=dtype)
                if given.dim() == 4 and lab.device == "cuda":
                    # As tensor cores want images; on a CPU 11.3 ms a step where the other took 10.3.
                    layout = torch.channels_last
                    made, given = made.to(memory_format=layout), given.to(memory_format=layout)
                wanted = made(given).detach().clone()
            update = optimizer(made)

            def loss() -> Tensor:
                return F.mse_loss(made(given), wanted)

            compiled = torch.compile(loss) if lab.device == "cuda" else loss

            def step() -> None:
                compiled().backward()
                update.step()
                update.zero_grad(set_to_none=True)

            return step

        return lab.traced(build, name=name.rpartition(" ")[2])

    return Clean(name, observe)


def _perceptron(width: int) -> nn.Module:
    layers = [each for _ in range(4) for each in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, width))


def _encoder(width: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _convolutions(width: int) -> nn.Module:
    """Of several widths: two of one width were both of one operator, 36% of the step (PREC002)."""
    n = width // 8
    widths = n, n, 2 * n, n, n
    layers = (nn.Conv2d(*each, 3, padding=1) for each in pairwise(widths))
    return nn.Sequential(*(it for each in layers for it in (each, nn.ReLU())))


CLEAN = (
    Clean("the reference decoder, train_step", _reference("train_step")),
    Clean("the reference decoder, forward", _reference("forward")),
    Clean("the reference decoder, prefill", _reference("prefill")),
    *(Clean(f"transformers' {name}", _transformers(name)) for name in CONFIGS),
    Clean("a plain decoder, trained", _plain),
    Clean("a plain decoder, evaluated", _evaluated),
    _regression("a perceptron", _perceptron, lambda n, width: (n, width)),
    _regression("torch's encoder", _encoder, lambda n, width: (n // 128, 128, width)),
    _regression(
        "convolutions", _convolutions, lambda n, width: (max(n // 512, 1), width // 8, 64, 64)
    ),
    Clean(
        "generation with a cache",
        lambda lab: generated(lab, 32, n_recomputed=0, name="generation"),
        # A GPU waits for the host at every token of so small a model.
        "cpu",
    ),
)
