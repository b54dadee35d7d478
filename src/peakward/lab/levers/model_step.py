"""A pass of the reference decoder, built on its device with its levers applied, ready to run steps."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from peakward.lab.data.feed import Feed
from peakward.lab.data.random_tokens import micro_batches, new_tokens
from peakward.lab.data.resident import Resident
from peakward.lab.inference.cache import KVCache
from peakward.lab.levers import (
    checkpointing,
    compilation,
    fp8,
    model_ranges,
    precision,
)
from peakward.lab.levers.configured_step import N_BATCHES, ConfiguredStep
from peakward.lab.models import decoder, quantised_linear
from peakward.levers import catalogue
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
            fp8.apply(model)
        catalogue.apply_to_module(model, configuration)
        checkpointing.apply(model, configuration.checkpointing)
        compilation.apply(model, configuration.compile, configuration.compile_scope)
        super().__init__(case, model, _source(case))
        self.n_parameters += quantised_linear.n_weights(model)
        self._cache = self._held(dtype) if case.workload.caches else None

    def _held(self, dtype: torch.dtype) -> KVCache:
        """The cache before every step: of `prefill` empty, of `decode` one token short of full."""
        case, work = self.case, self.case.workload
        cache = KVCache(
            case.model,
            batch_size=work.batch_size,
            capacity=work.seq_len,
            device=case.device,
            dtype=precision.AUTOCAST.get(case.configuration.precision, dtype),
        )
        if work.pass_ == "decode":
            cache.fill(work.seq_len - 1, seed=work.seed)
        return cache

    def ranged(self) -> AbstractContextManager[None]:
        """While it lasts, steps open the ranges of `ranges` inside the model."""
        return model_ranges.ranged(self.model)

    def held(self) -> dict[Purpose, list[Tensor]]:
        """The tensors that it holds between steps, by what they are for."""
        cached = [] if self._cache is None else list(self._cache.buffers())
        return {**super().held(), "cache": cached}

    def _output_of(self, batch: Sequence[Tensor]) -> Tensor:
        return self.model(batch[0], cache=self._cache)

    def _loss_of(self, batch: Sequence[Tensor]) -> Tensor:
        ids, targets = batch
        return self.model(ids, targets)


def _source(case: ModelCase) -> Feed | Resident:
    work = case.workload
    if work.data is not None:
        return Feed(case)
    drawn = new_tokens if work.caches else micro_batches
    return Resident(drawn(work, case.model.vocab_size, case.device, n_steps=N_BATCHES))
