"""Types and sizes that keep products from a GPU's fast units."""

import torch
from torch import Tensor, nn

from faults.decoder import SIZES, Decoder, decoder, optimizer, tokens, training
from faults.lab import Lab, Step
from faults.records import Fault, Seen
from peakward.models.presets import model
from peakward.records.case import Configuration, ModelCase, Workload


class InFp32(nn.Module):
    """A product in fp32 in the midst of others in 16 bits."""

    def __init__(self, product: nn.Linear) -> None:
        super().__init__()
        self.product = product.float()

    def forward(self, x: Tensor) -> Tensor:
        """As the product does."""
        return self.product(x.float()).to(x.dtype)


def _fp32(lab: Lab, n_layers: float) -> Seen:
    sizes = SIZES[lab.device]._replace(n_layers=4)

    def build() -> Step:
        made = decoder(sizes, lab.device)
        for block in list(made.blocks)[: int(n_layers)]:
            block.up, block.down = InFp32(block.up), InFp32(block.down)
        return training(made, tokens(sizes, lab.device))

    return lab.traced(build, name=f"fp32-{n_layers:g}")


def _roof(lab: Lab, vocab_size: float) -> Seen:
    sizes = SIZES[lab.device]
    sizes = sizes._replace(vocab_size=int(vocab_size) or sizes.vocab_size, batch_size=2)

    def build() -> Step:
        made, ids = decoder(sizes, lab.device), tokens(sizes, lab.device)[:, :-1]

        @torch.no_grad()
        def step() -> None:
            made(ids)

        return step

    return lab.traced(build, name=f"vocabulary-{vocab_size:g}")


class Autocast(nn.Module):
    """The block with fp32 weights, cast for every product."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block.float()

    def forward(self, x: Tensor) -> Tensor:
        """As the block does."""
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.block(x.float()).to(torch.bfloat16)


def _casts(lab: Lab, n_layers: float) -> Seen:
    """Few tokens, so that weights are most of what is cast."""
    sizes = SIZES[lab.device]._replace(n_layers=4, batch_size=1)

    def build() -> Step:
        made: Decoder = decoder(sizes, lab.device)
        for at in range(int(n_layers)):
            made.blocks[at] = Autocast(made.blocks[at])
        return training(made, tokens(sizes, lab.device), optimizer(made))

    return lab.traced(build, name=f"casts-{n_layers:g}")


def _odd_sizes(lab: Lab, more: float) -> Seen:
    """A vocabulary and a feed-forward width that are odd numbers."""
    sizes = SIZES[lab.device]
    sizes = sizes._replace(vocab_size=sizes.vocab_size + (1 if more else 0))

    def build() -> Step:
        made = decoder(sizes, lab.device)
        width = 4 * sizes.d_model + 1
        for block in list(made.blocks)[: max(int(more) - 1, 0)]:
            like = block.up.weight
            kind = {"bias": False, "device": like.device, "dtype": like.dtype}
            block.up = nn.Linear(sizes.d_model, width, **kind)
            block.down = nn.Linear(width, sizes.d_model, **kind)
        return training(made, tokens(sizes, lab.device))

    return lab.traced(build, name=f"odd-sizes-{more:g}")


def _odd_vocabulary(lab: Lab, more: float) -> Seen:
    """GPT-2's own vocabulary, and the one that is padded to a multiple of 64."""
    shape = model("gpt2")
    shape = shape if more else type(shape)(**_fields(shape) | {"vocab_size": 50_304})
    good = Configuration(
        precision="bf16", attention="sdpa", optimizer="adamw-fused", compile="default"
    )
    work = Workload(batch_size=8, seq_len=1024)
    return lab.case(ModelCase(model=shape, workload=work, configuration=good, device="cuda"))


def _fields(shape: object) -> dict[str, object]:
    return {name: getattr(shape, name) for name in shape.__struct_fields__}


FAULTS = (
    Fault("PREC001", "products in fp32", "of 4 layers", (1, 2, 4), _fp32),
    Fault("PREC002", "a large vocabulary", "tokens", (65_536, 131_072, 262_144), _roof),
    Fault("PREC003", "autocast over fp32 weights", "of 4 layers", (1, 2, 4), _casts),
    Fault("PREC004", "odd sizes", "(1: vocabulary, 2, 3: a layer more)", (1, 2, 3), _odd_sizes),
    Fault("PREC004", "GPT-2's vocabulary", "tokens over 50,256", (1,), _odd_vocabulary),
)
