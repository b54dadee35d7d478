"""Whole steps in turns: by the rule's cuts, by the fastest of kernels alone, and on several caches."""

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoding.cuts import OTHER_SPLITS, ahead_in, fastest
from decoding.graphs import Report, graph_of, in_turns, told
from decoding.launches import CACHES, POSITIONS, Kernel
from peakward.kernels.ops.decode_step.triton.settings import Cut, Split
from peakward.lab.inference.cache import KVCache
from peakward.lab.inference.fused_step import Cuts, FusedStep
from peakward.lab.inference.read_bytes import weight_bytes
from peakward.lab.levers.model_step import ModelStep
from peakward.lab.models.decoder import Decoder, rotation
from peakward.lab.models.layers import QuantisedLinear
from peakward.models import presets
from peakward.records.case import Configuration, ModelCase, Workload


def case_of(name: str, weights: str, attention: str) -> ModelCase:
    """A step of decode behind `POSITIONS` tokens, in bf16 with fused operators in CUDA graphs."""
    return ModelCase(
        model=presets.model(name),
        workload=Workload(batch_size=1, seq_len=POSITIONS, pass_="decode"),
        configuration=Configuration(
            precision="bf16",
            attention=attention,
            cuda_graphs=True,
            norm="fused",
            rope="fused",
            swiglu="fused",
            weights=weights,
        ),
        device="cuda",
    )


@torch.no_grad()
def exact_logits(model: Decoder, ids: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """The step's logits in fp32 from the same stored numbers.

    Args:
        ids: (sequences,), each one token at the cache's last position.
        keys, values: of each layer (sequences, kv_heads, positions, head_dim).
    """
    shape = model.shape

    def weight(linear: nn.Linear) -> Tensor:
        if isinstance(linear, QuantisedLinear):
            return linear.dequantised(torch.float32)
        return linear.weight.float()

    def normed(x: Tensor, norm: nn.Module) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], norm.weight.float(), shape.norm_eps)

    x = model.embedding.weight[ids].float()
    cos, sin = (each[-1] for each in rotation(shape, keys[0].shape[2], x))
    for block, kept_k, kept_v in zip(model.blocks, keys, values, strict=True):
        qkv = F.linear(normed(x, block.attention_norm), weight(block.attention.qkv))
        heads = qkv.view(len(ids), -1, shape.head_dim)
        q, new_k, new_v = heads.split((shape.n_heads, shape.n_kv_heads, shape.n_kv_heads), 1)
        low, high = torch.cat((q, new_k), 1).chunk(2, -1)
        turned = torch.cat((low * cos - high * sin, high * cos + low * sin), -1)
        q, new_k = turned.split((shape.n_heads, shape.n_kv_heads), 1)
        k, v = kept_k.float(), kept_v.float()
        k[:, :, -1], v[:, :, -1] = new_k, new_v
        group = shape.n_heads // shape.n_kv_heads
        wide = (each.repeat_interleave(group, 1) for each in (k, v))
        mixed = F.scaled_dot_product_attention(q[:, :, None], *wide)
        x = x + F.linear(mixed.flatten(1), weight(block.attention.out))
        gate, up = F.linear(normed(x, block.ff_norm), weight(block.ff.up)).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, weight(block.ff.down))
    return F.linear(normed(x, model.readout.norm), model.readout.head.weight.float())


def apart(got: Tensor, exact: Tensor) -> float:
    """The norm of the difference over the norm of the exact logits."""
    return float((got.float() - exact).norm() / exact.norm())


@torch.no_grad()
def steps(
    report: Report,
    name: str,
    weights: str,
    best: dict[Kernel, list[Cut]],
    splits: list[Split],
) -> None:
    """Times arms in turns: separate kernels, the fused step by its rule, and by the sweep's fastest cuts."""
    base = ModelStep(case_of(name, weights, "flash-decode"), torch.bfloat16)
    model, cache = base.model, base.cache
    held = [each.storage for each in cache.layers]
    keys, values = [each.keys for each in held], [each.values for each in held]
    bytes_ = weight_bytes([model]) + sum(each.n_bytes for each in held)
    base.step()
    arms: dict[str, Callable[[], Any]] = {"separate": base.step}
    ids = torch.randint(0, model.shape.vocab_size, (1,), device="cuda")
    position = torch.full((1,), POSITIONS - 1, device="cuda")
    exact = exact_logits(model, ids, keys, values)
    found: dict[str, Any] = {"separate": apart(model(ids[:, None], cache=cache)[:, -1], exact)}
    plain = FusedStep(model, held)
    cuts_of = {"rule": plain.cuts}
    rows = fastest(name, weights, best, splits)
    if rows:
        best_alone = {kernel: found[0] for kernel, found in rows.items()}
        cuts_of["best alone"] = plain.cuts._replace(**best_alone)
    kept = []
    for label, cuts in cuts_of.items():
        fused = FusedStep(model, held, cuts)
        first = fused(ids, position)
        found[label] = apart(first, exact)
        kept_logits: list[Tensor] = []
        graph = graph_of(
            lambda fused=fused, kept_logits=kept_logits: kept_logits.append(fused(ids, position))
        )
        for _ in range(20):
            graph.replay()
        found[f"{label}-repeats"] = torch.equal(kept_logits[-1], first)
        kept.append((fused, graph, kept_logits))
        arms[label] = graph.replay
    times = in_turns(arms)
    bandwidth = report.held["copy_bytes_per_s"]
    report.add(
        phase="steps", model=name, weights=weights, bytes=bytes_, errors=found,
        roof_per_s=bandwidth / bytes_,
        per_s={arm: round(1 / statistics.median(each), 1) for arm, each in times.items()},
        share={arm: round(bytes_ / statistics.median(each) / bandwidth, 4) for arm, each in times.items()},
        spread={arm: round(max(each) / min(each), 4) for arm, each in times.items()},
        cuts=cuts_of,
    )  # fmt: skip


@torch.no_grad()
def refine(report: Report, name: str, weights: str, rows: dict[str, list[Any]]) -> None:
    """Tries each kernel's fastest cuts alone in the whole step, one kernel after the other. The faster of two
    in turns stays. A kernel alone overlaps with itself, in a step with others."""
    model = ModelStep(case_of(name, weights, "flash-decode"), torch.bfloat16)
    cache = model.cache
    held = [each.storage for each in cache.layers]
    ids = torch.randint(0, model.model.shape.vocab_size, (1,), device="cuda")
    position = torch.full((1,), POSITIONS - 1, device="cuda")

    def step_of(cuts: Cuts) -> Callable[[], Any]:
        fused = FusedStep(model.model, held, cuts)
        graph = graph_of(lambda: fused(ids, position))
        return lambda graph=graph, _held=fused: graph.replay()

    cuts = FusedStep(model.model, held).cuts
    cuts = cuts._replace(**{kernel: found[0] for kernel, found in rows.items()})
    best, told_rows = step_of(cuts), []
    for kernel, found in rows.items():
        for each in found[1:]:
            tried = cuts._replace(**{kernel: each})
            with told(report, f"refine {name} {weights} {kernel} {each}"):
                step = step_of(tried)
                times = in_turns({"best": best, "tried": step}, turns=4)
                before, after = (statistics.median(times[arm]) for arm in ("best", "tried"))
                told_rows.append([kernel, each, round(before * 1e6, 1), round(after * 1e6, 1)])
                if after < before:
                    best, cuts = step, tried
    took = statistics.median(in_turns({"best": best})["best"])
    report.add(
        phase="refine", model=name, weights=weights, rows=told_rows, us=round(took * 1e6, 1),
        per_s=round(1 / took, 1), cuts=cuts,
    )  # fmt: skip


@torch.no_grad()
def caches(report: Report, name: str, weights: str, lengths: list[int], batch: int) -> None:
    """Times arms in turns behind each length: separate kernels and the fused step, on each kind of cache."""
    model = ModelStep(case_of(name, weights, "flash-decode"), torch.bfloat16).model
    ids = torch.randint(0, model.shape.vocab_size, (batch,), device="cuda")
    for positions in lengths:
        arms, kept, errors, bytes_ = {}, [], {}, {}
        for label, stored in CACHES.items():
            cache = KVCache(
                model.shape, batch_size=batch, capacity=positions, device="cuda", dtype=torch.bfloat16,
                stored=stored, by_kernel=True,
            )  # fmt: skip
            cache.fill(positions - 1, seed=0)
            splits = OTHER_SPLITS[label] if weights == "int4:128" and batch == 1 else []
            of_arms, of_errors = arms_of(model, cache, ids, splits)
            arms |= {f"{arm}, {label}": start for arm, start in of_arms.items()}
            errors |= {f"{arm}, {label}": error for arm, error in of_errors.items()}
            kept_bytes = sum(each.storage.n_bytes for each in cache.layers)
            bytes_[label] = weight_bytes([model]) + kept_bytes
            kept.append(cache)
        times = in_turns(arms)
        bandwidth = report.held["copy_bytes_per_s"]
        report.add(
            phase="caches", model=name, weights=weights, batch=batch, positions=positions,
            bytes=bytes_, errors=errors,
            us={arm: round(statistics.median(each) * 1e6, 1) for arm, each in times.items()},
            share={
                arm: round(bytes_[arm.rsplit(", ", 1)[1]] / statistics.median(each) / bandwidth, 4)
                for arm, each in times.items()
            },
            spread={arm: round(max(each) / min(each), 4) for arm, each in times.items()},
        )  # fmt: skip
        arms.clear()
        del cache, kept
        torch.cuda.empty_cache()


def arms_of(
    model: Decoder, cache: KVCache, ids: Tensor, splits: list[Split]
) -> tuple[dict[str, Callable[[], Any]], dict[str, Any]]:
    """Captures steps on one cache.

    Returns:
        What replays each, and how far its logits are from those in fp32 (see `apart`).
    """
    held, end = [each.storage for each in cache.layers], cache.length + 1
    widened = [each.widened(torch.bfloat16) for each in held]
    exact = exact_logits(model, ids, *(list(each) for each in zip(*widened, strict=True)))
    position = torch.full((len(ids),), end - 1, device="cuda")
    rule = FusedStep(model, held)
    steps = {
        "separate": lambda: model(ids[:, None], cache=cache)[:, -1],
        "fused": lambda: rule(ids, position),
    }
    for each in splits:
        cuts = rule.cuts._replace(attention=ahead_in(each, model.shape))
        fused = FusedStep(model, held, cuts)
        steps[f"fused {tuple(each[:4])}"] = lambda fused=fused: fused(ids, position)
    arms, errors = {}, {}
    for arm, step in steps.items():
        first, again = step(), []
        errors[arm] = apart(first, exact)
        graph = graph_of(lambda step=step, again=again: again.append(step()))
        for _ in range(20):
            graph.replay()
        # Of a captured step, what it returned while it was captured is where its replays write.
        errors[f"{arm} repeats"] = torch.equal(again[-1], first)
        # A graph holds neither the step's buffers nor the result that it writes.
        arms[arm] = lambda graph=graph, _held=(step, again): graph.replay()
    return arms, errors
