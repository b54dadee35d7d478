"""A pass of the reference decoder, built on its device with its levers applied, ready to run steps.

While a profile is taken there are ranges around its blocks and their attention. For these, calls are replaced
rather than hooked. A hook is part of the module's own call: of a compiled block it would be traced into the
block; and it does not see the end of a recomputed block, which torch stops by an exception once the last
tensor that it needs is there.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import Tensor, nn

from peakward.kernels.ops.attention.api import in_ranges
from peakward.kernels.ops.attention.own import DECODE
from peakward.lab.data.feed import Feed, Resident, earlier_tokens, micro_batches, new_tokens
from peakward.lab.inference.cache import KVCache
from peakward.lab.levers import compilation, precision
from peakward.lab.levers.compilation import Recomputed, is_compiled
from peakward.lab.levers.configured_step import N_BATCHES, ConfiguredStep
from peakward.lab.levers.ranges import opened
from peakward.lab.models import decoder, layers
from peakward.lab.models.decoder import Decoder, SelfAttention
from peakward.levers import catalogue, decode_step, kv_cache
from peakward.records.case import ModelCase
from peakward.records.memory import Purpose


class ModelStep(ConfiguredStep):
    """One pass of the reference decoder over the next micro-batches, again and again."""

    case: ModelCase
    model: decoder.Decoder

    def __init__(self, case: ModelCase, dtype: torch.dtype) -> None:
        configuration = case.configuration
        model = decoder.build(
            case.model,
            attention=catalogue.function("attention", configuration),
            loss=catalogue.function("loss", configuration),
            rotation=catalogue.function("rotation", configuration),
            gating=catalogue.function("gating", configuration),
            weights=configuration.weights,
            device=case.device,
            dtype=dtype,
            seed=case.workload.seed,
        )
        if configuration.precision == "fp8":
            precision.apply_fp8(model)
        catalogue.apply_to_module(model, configuration, is_built=True)
        compilation.apply_checkpointing(model, configuration.checkpointing)
        compilation.apply_compile(model, configuration.compile, configuration.compile_scope)
        super().__init__(case, model, _source(case))
        self.n_parameters += layers.n_weights(model)
        keeps = case.workload.caches and not kv_cache.recomputes(case)
        self.cache = self._held(dtype) if keeps else None
        """Before every step the same: of `prefill` empty, of `decode` one token short of full. None of a
        pass that keeps nothing."""
        self._fused: Callable[[Tensor], Tensor] | None = None
        if self.cache is not None and decode_step.is_fused(case):
            self._fused = self._fused_step(self.cache)

    def _held(self, dtype: torch.dtype) -> KVCache:
        """The cache, of `decode` with random contents."""
        case, work = self.case, self.case.workload
        stored = kv_cache.STORED.get(case.configuration.kv_cache)
        cache = KVCache(
            case.model,
            batch_size=work.batch_size,
            capacity=work.seq_len,
            device=case.device,
            dtype=precision.AUTOCAST.get(case.configuration.precision, dtype),
            stored=None if stored is None else getattr(torch, stored),
            by_kernel=case.configuration.attention == DECODE,
        )
        if work.pass_ == "decode":
            cache.fill(work.seq_len - 1, seed=work.seed)
        return cache

    def _fused_step(self, cache: KVCache) -> Callable[[Tensor], Tensor]:
        """From the newest tokens (batch, 1) to the logits behind them, (batch, 1, vocab)."""
        from peakward.lab.inference.fused_step import FusedStep

        work = self.case.workload
        step = FusedStep(self.model, [each.storage for each in cache.layers])
        position = torch.full((work.batch_size,), work.seq_len - 1, device=self.case.device)
        return lambda ids: step(ids[:, 0], position)[:, None]

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """See `ConfiguredStep`. Those of recomputed runs are told one by one."""
        runs = (
            each.blocks if isinstance(each, Recomputed) else (each,) for each in self.model.blocks
        )
        return [block for run in runs for block in run]

    def ranged(self) -> AbstractContextManager[None]:
        """While it lasts, steps open the ranges of `ranges` inside the model."""
        return ranged(self.model)

    def held(self) -> dict[Purpose, list[Tensor]]:
        """The tensors that it holds between steps, by what they are for."""
        cached = [] if self.cache is None else list(self.cache.buffers())
        return {**super().held(), "cache": cached}

    def read_earlier(self) -> None:
        """Makes a decode step's cache hold the tokens before the newest, in the place of random ones."""
        assert self.cache is not None
        work, before = self.case.workload, self.cache.length
        self.cache.length = 0
        with torch.no_grad():
            ids = earlier_tokens(work, self.case.model.vocab_size, self.case.device)
            self.model(ids, cache=self.cache)
        self.cache.length = before

    def _output_of(self, batch: Sequence[Tensor]) -> Tensor:
        if kv_cache.recomputes(self.case):
            logits: Tensor = self.model(batch[0])
            return logits[:, -1:]
        if self._fused is not None:
            return self._fused(batch[0])
        return self.model(batch[0], cache=self.cache)

    def _loss_of(self, batch: Sequence[Tensor]) -> Tensor:
        ids, targets = batch
        return self.model(ids, targets)


def _source(case: ModelCase) -> Feed | Resident:
    work = case.workload
    if work.data is not None:
        return Feed(case)
    drawn = new_tokens if work.caches else micro_batches
    batches = drawn(work, case.model.vocab_size, case.device, n_steps=N_BATCHES)
    if kv_cache.recomputes(case):
        earlier = earlier_tokens(work, case.model.vocab_size, case.device)
        return Resident([[(torch.cat([earlier, ids[0]], 1),)] for (ids,) in batches])
    return Resident(batches)


class RangedBlock(nn.Module):
    """A block, called in a range."""

    def __init__(self, block: nn.Module, number: int) -> None:
        super().__init__()
        self.block, self.name = block, f"block {number}"

    def forward(self, x: Tensor, *shared: Tensor | None) -> Tensor:
        with opened(self.name):
            return self.block(x, *shared)


@contextmanager
def ranged(model: Decoder) -> Iterator[None]:
    """While it lasts, the model's blocks and their attention run in the ranges of `ranges`.

    Compiled code is left as it is, and not compiled again. Parameters, and their order, stay;
    afterwards the model is what it was.
    """
    with ExitStack() as changes:
        if not is_compiled(model):
            for number, (blocks, position) in enumerate(list(_sites(model.blocks))):
                changes.enter_context(_ranged_block(blocks, position, number))
        yield


def _sites(blocks: nn.ModuleList) -> Iterator[tuple[nn.ModuleList, int]]:
    """The list and the place in it that each block is called from.

    In a run of recomputed blocks these are the run's own, so that the recomputation opens them
    too; a run that is compiled, of one block always, is that block.
    """
    for position, block in enumerate(blocks):
        if isinstance(block, Recomputed) and not is_compiled(block):
            yield from _sites(block.blocks)
        else:
            yield blocks, position


@contextmanager
def _ranged_block(blocks: nn.ModuleList, position: int, number: int) -> Iterator[None]:
    block = blocks[position]
    inner = [] if is_compiled(block) else _attentions(block)
    plain = [each.attention for each in inner]
    for each in inner:
        each.attention = in_ranges(each.attention, opened)
    blocks[position] = RangedBlock(block, number)
    try:
        yield
    finally:
        blocks[position] = block
        for each, attention in zip(inner, plain, strict=True):
            each.attention = attention


def _attentions(block: nn.Module) -> list[SelfAttention]:
    return [each for each in block.modules() if isinstance(each, SelfAttention)]
