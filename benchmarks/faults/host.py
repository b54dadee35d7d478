"""What keeps a GPU waiting for the host."""

import gc
import re
from collections.abc import Iterator
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from faults.decoder import SIZES, decoder, optimizer, tokens, training
from faults.lab import Lab, Step
from faults.records import Fault, Seen

TEXT = "\n".join(topics.values())
N_LAYERS = 64
HIGHEST = 1e9
"""What no activation reaches."""
WORD = re.compile(r"\w+|[^\w\s]|\s+")


class Documents(IterableDataset[Tensor]):
    """Python's own language reference, tokenised where it is asked for: `n_characters` a sequence."""

    def __init__(self, length: int, vocab_size: int, n_characters: int) -> None:
        self.length, self.vocab_size, self.n_characters = length, vocab_size, n_characters

    def __iter__(self) -> Iterator[Tensor]:
        words: dict[str, int] = {}
        at = 0
        while True:
            text = (TEXT * 2)[at : at + self.n_characters]
            at = (at + self.n_characters) % len(TEXT)
            ids = [words.setdefault(each, len(words)) for each in WORD.findall(text)]
            full = (ids * (self.length // max(len(ids), 1) + 1))[: self.length]
            yield torch.tensor(full) % self.vocab_size


def _loading(lab: Lab, n_thousand: float) -> Seen:
    """Without the fault the batch lies on the device."""
    sizes = SIZES[lab.device]

    def build() -> Step:
        made, ids = decoder(sizes, lab.device), tokens(sizes, lab.device)
        if not n_thousand:
            return training(made, ids)
        read = Documents(sizes.seq_len + 1, sizes.vocab_size, int(1000 * n_thousand))
        batches = iter(
            DataLoader(read, batch_size=sizes.batch_size, pin_memory=lab.device == "cuda")
        )
        return training(made, ids, before=lambda: ids.copy_(next(batches), non_blocking=True))

    return lab.traced(build, name=f"loading-{n_thousand:g}")


def _pieces(lab: Lab, n: float) -> Seen:
    """The same tokens in so many pieces, one after another."""
    sizes = SIZES[lab.device]._replace(
        d_model=1024, n_heads=16, n_layers=8, seq_len=64, batch_size=512
    )

    def build() -> Step:
        made, ids = decoder(sizes, lab.device), tokens(sizes, lab.device)
        pieces = ids.chunk(max(int(n), 1))

        @torch.no_grad()
        def step() -> None:
            for each in pieces:
                made(each)

        return step

    return lab.traced(build, name=f"pieces-{n:g}")


def _python(lab: Lab, n_thousand: float) -> Seen:
    """A step that ends with arithmetic on Python's numbers."""

    def bookkeeping() -> None:
        total = 0
        for each in range(int(1000 * n_thousand)):
            total += each % 7

    return _beside(lab, bookkeeping, f"python-{n_thousand:g}")


def _collector(lab: Lab, n_million: float) -> Seen:
    """gc.collect() in each step of a program that holds so many objects."""
    held = [[] for _ in range(int(1e6 * n_million))]
    collect = (lambda: gc.collect()) if n_million else (lambda: None)  # noqa: PLW0108  a frame of its own
    try:
        return _beside(lab, collect, f"collector-{n_million:g}", with_stack=True)
    finally:
        held.clear()


def _beside(lab: Lab, before: Step, name: str, *, with_stack: bool = False) -> Seen:
    sizes = SIZES[lab.device]

    def build() -> Step:
        made = decoder(sizes, lab.device)
        return training(made, tokens(sizes, lab.device), before=before)

    return lab.traced(build, name=name, with_stack=with_stack)


def _waits(lab: Lab, n: float) -> Seen:
    """`.item()` after so many of 64 layers, evenly spread. Without it the host is far ahead: a layer takes
    a GPU 0.14 ms (an H100) and the host less, under a profiler too; each wait lets the GPU run dry
    until the next layer is launched."""
    width, n_rows = (4096, 3072) if lab.device == "cuda" else (256, 64)

    def build() -> Step:
        dtype = torch.bfloat16 if lab.device == "cuda" else torch.float32
        with torch.device(lab.device):
            layers = nn.ModuleList(nn.Linear(width, width, dtype=dtype) for _ in range(N_LAYERS))
            given = torch.randn(n_rows, width, dtype=dtype)
        every = N_LAYERS // int(n) if n else N_LAYERS + 1

        @torch.no_grad()
        def step() -> None:
            x = given
            for at, layer in enumerate(layers, start=1):
                x = F.relu(layer(x))
                if at % every == 0 and x[0, 0].item() > HIGHEST:
                    break

        return step

    return lab.traced(build, name=f"item-{n:g}")


def _crossing(lab: Lab, n_mib: float) -> Seen:
    """A table that stays in the host's pageable memory and is moved in each step."""
    table = torch.rand(max(int(n_mib * 2**18), 1))
    move = (lambda: table.to(lab.device)) if n_mib else (lambda: None)
    return _beside(lab, move, f"crossing-{n_mib:g}")


def _emptied(lab: Lab, n: float) -> Seen:
    """torch.cuda.empty_cache() after the optimiser, and after layers."""
    sizes = SIZES[lab.device]._replace(n_layers=4)

    def build() -> Step:
        made = decoder(sizes, lab.device)
        for block in list(made.blocks)[: max(int(n) - 1, 0)]:
            block.register_forward_hook(lambda *_: torch.cuda.empty_cache())
        after = (lambda _loss: torch.cuda.empty_cache()) if n else (lambda _loss: None)
        return training(made, tokens(sizes, lab.device), optimizer(made), after=after)

    return lab.traced(build, name=f"emptied-{n:g}")


FAULTS = (
    Fault(
        "HOST001",
        "text tokenised in the step",
        "thousand characters",
        (50, 200, 800),
        _loading,
        "any",
    ),
    Fault("HOST002", "a batch in small pieces", "pieces", (16, 32, 64), _pieces),
    Fault(
        "HOST003",
        "Python arithmetic in the step",
        "thousand turns",
        (1000, 2000, 8000),
        _python,
        "any",
    ),
    Fault("HOST004", "item() in the step", "calls", (8, 32, 64), _waits),
    Fault("HOST005", "a table on the host", "MiB", (64, 256, 1024), _crossing),
    Fault("HOST006", "gc.collect() in the step", "million objects", (1, 2, 8), _collector, "any"),
    Fault("MEM003", "empty_cache() in the step", "calls", (1, 3, 5), _emptied),
)
