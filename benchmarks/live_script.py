"""A training script with five planted faults, beside the same script mended by hand, and with what
`pw.investigate` found applied to it: `python benchmarks/live_script.py --device cuda --out FILE`.

The faults: attention written out, a loader that makes each batch between two steps, `.item()` in each step,
an optimizer tensor by tensor, and products in fp32. By hand all five are mended, then the blocks are compiled
too. All arms are timed in turns in this process, each over a window of steps with its waits for batches.
"""

import argparse
import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import fmean
from time import monotonic, perf_counter
from typing import Any, NamedTuple

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import peakward as pw

ROUNDS = 4


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of the script's model and batches."""

    n_layers: int
    width: int
    n_heads: int
    vocab_size: int
    batch_size: int
    seq_len: int
    n_words: int
    """Words that the loader hashes for a sample: work for the host."""
    n_steps: int
    """Steps of a window."""


SIZES = {
    "cuda": Sizes(
        n_layers=12, width=768, n_heads=12, vocab_size=10_000, batch_size=8, seq_len=1024,
        n_words=60_000, n_steps=20,
    ),
    "cpu": Sizes(
        n_layers=2, width=64, n_heads=2, vocab_size=256, batch_size=4, seq_len=64, n_words=10_000,
        n_steps=10,
    ),
}  # fmt: skip


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One form of the script."""

    name: str
    step_ms: float
    """Mean over the rounds of the windows' mean steps, waits for batches included."""
    rounds_ms: tuple[float, ...]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All that came of it."""

    device: str
    torch: str
    sizes: Sizes
    budget_s: float
    investigated_s: float
    levers: tuple[str, ...]
    """At work in the script after `pw.apply`."""
    notes: tuple[str, ...]
    """What the handle says of them."""
    gained: dict[str, float]
    """The step with each lever over the step without it, of the trials that were timed."""
    told: dict[str, str]
    """What could not be pulled or was not worth it, and why."""
    findings: tuple[str, ...]
    """The findings about the faulty script, with their evidence."""
    arms: tuple[Arm, ...]
    over_mended: float
    """The step with what was found over the step mended by hand."""


class Block(nn.Module):
    """A block of GPT-2, whose attention is written out where the script is faulty."""

    def __init__(self, width: int, n_heads: int, *, written: bool) -> None:
        super().__init__()
        self.n_heads, self.written = n_heads, written
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = (batch, length, self.n_heads, width // self.n_heads)
        packed = self.qkv(self.norm_1(x)).chunk(3, -1)
        q, k, v = (each.view(heads).transpose(1, 2) for each in packed)
        if self.written:
            scores = q @ k.transpose(-2, -1) * heads[-1] ** -0.5
            future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            attended = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        else:
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    """A GPT-2 of these sizes."""

    def __init__(self, sizes: Sizes, *, written: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocab_size, sizes.width)
        self.positions = nn.Embedding(sizes.seq_len, sizes.width)
        self.blocks = nn.ModuleList(
            Block(sizes.width, sizes.n_heads, written=written) for _ in range(sizes.n_layers)
        )
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Words(Dataset[Tensor]):
    """Samples that take the host some milliseconds each, as tokenising does."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, place: int) -> Tensor:
        sizes, state = self._sizes, place
        for _ in range(sizes.n_words):
            state = (1_103_515_245 * state + 12_345) % 2**31
        generator = torch.Generator().manual_seed(state)
        return torch.randint(sizes.vocab_size, (sizes.seq_len + 1,), generator=generator)


class Script(NamedTuple):
    """What a training script has before its loop."""

    step: Callable[[Tensor], object]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: Iterable[Any]


def faulty(sizes: Sizes, device: str) -> Script:
    """The script as it was found."""
    torch.manual_seed(0)
    model = GPT(sizes, written=True).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    loader = DataLoader(Words(sizes), batch_size=sizes.batch_size, shuffle=True, drop_last=True)
    losses: list[float] = []

    def step(batch: Tensor) -> Tensor:
        ids = batch.to(device)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Script(step, model, optimizer, loader)


def mended(sizes: Sizes, device: str, *, compiled: bool) -> Script:
    """The script with the five faults mended by hand."""
    torch.manual_seed(0)
    model = GPT(sizes, written=False).to(device)
    if compiled:
        for block in model.blocks:
            block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loader = DataLoader(
        Words(sizes),
        batch_size=sizes.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=8 if device == "cuda" else 2,
        pin_memory=device == "cuda",
        persistent_workers=True,
    )

    def step(batch: Tensor) -> Tensor:
        ids = batch.to(device, non_blocking=True)
        # On a CPU without bf16 products autocast would be a fault of its own.
        cast = torch.autocast(device, torch.bfloat16, enabled=device == "cuda")
        with cast:
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Script(step, model, optimizer, loader)


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    """Its batches, epoch after epoch."""
    while True:
        yield from loader


def window_ms(script: Script, batches: Iterator[Any], n_steps: int, device: str) -> float:
    """The mean step of some, after as many untimed ones: what a queue held is then used up."""
    for _ in range(n_steps):
        script.step(next(batches))
    _wait(device)
    began = perf_counter()
    for _ in range(n_steps):
        script.step(next(batches))
    _wait(device)
    return 1e3 * (perf_counter() - began) / n_steps


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def in_turns(scripts: dict[str, Script], sizes: Sizes, device: str) -> tuple[Arm, ...]:
    """All arms timed in turns. While one runs, the workers of the others are full and idle."""
    batches = {name: endless(each.loader) for name, each in scripts.items()}
    times: dict[str, list[float]] = {name: [] for name in scripts}
    for number in range(ROUNDS + 1):
        for name, script in scripts.items():
            took_ms = window_ms(script, batches[name], sizes.n_steps, device)
            if number:  # The first compiles.
                times[name].append(took_ms)
    return tuple(
        Arm(name=name, step_ms=fmean(found), rounds_ms=tuple(found))
        for name, found in times.items()
    )


def found_by(script: Script, budget_s: float, db: Path) -> "pw.Study":
    """The study of the faulty script."""
    return pw.investigate(
        script.step,
        name="five faults",
        model=script.model,
        optimizer=script.optimizer,
        loader=script.loader,
        budget_s=budget_s,
        db=db,
    )


def measured(device: str, budget_s: float, db: Path, sizes: Sizes) -> Result:
    """The faulty script investigated, then all arms in turns."""
    script = faulty(sizes, device)
    began = monotonic()
    study = found_by(script, budget_s, db)
    investigated_s = monotonic() - began
    fast = pw.apply(study, script.model, script.optimizer, loader=script.loader)
    scripts = {
        "faulty": faulty(sizes, device),
        "investigated": script._replace(loader=fast.loader or script.loader),
        "mended": mended(sizes, device, compiled=False),
        "mended and compiled": mended(sizes, device, compiled=True),
    }
    if device == "cpu":  # A compiler is no part of what is shown there.
        del scripts["mended and compiled"]
    with contextlib.ExitStack() as applied:
        applied.callback(fast.undo)
        levers = fast.levers
        arms = in_turns(scripts, sizes, device)
    by_name = {each.name: each.step_ms for each in arms}
    return Result(
        device=study.environment.device_name,
        torch=str(torch.__version__),
        sizes=sizes,
        budget_s=budget_s,
        investigated_s=investigated_s,
        levers=levers,
        notes=fast.notes,
        gained={
            f"{each.lever} ({each.stage})": each.time_ratio.estimate
            for each in study.trials
            if each.time_ratio is not None
        },
        told={each.lever: each.reason for each in study.trials if each.verdict != "kept"},
        findings=tuple(
            f"{each.code}: {each.cause} {'; '.join(one.name for one in each.evidence)}"
            for each in study.diagnoses[0].findings
        ),
        arms=arms,
        over_mended=by_name["investigated"] / by_name["mended"],
    )


def main() -> None:
    """Prints the result as JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", choices=tuple(SIZES), default="cuda")
    options.add_argument("--budget-s", type=float, default=80.0)
    options.add_argument("--db", type=Path, default=Path("peakward.db"))
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    found = measured(asked.device, asked.budget_s, asked.db, SIZES[asked.device])
    text = msgspec.json.format(msgspec.json.encode(found)).decode()
    print(text)
    if asked.out is not None:
        asked.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
