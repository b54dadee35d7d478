"""A causal language model of transformers on the caches of generation.

It computes as its authors wrote it. In the place of transformers' cache it is handed one whose layers write
to and read from a `SequenceCache`, with the position of each token in its own row. Its masks follow its own
rules (windows, chunks), asked at these positions, so that rows of any lengths go on together.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import Cache, DynamicCache, PreTrainedModel, masking_utils
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from peakward.lab.inference.passes import EMPTY, Pass, PassLayer
from peakward.lab.inference.sequences import ContiguousCache
from peakward.records.errors import PeakwardError

PLAIN = (DynamicLayer, DynamicSlidingWindowLayer)
"""transformers' layers of a cache that hold keys and values and nothing else."""
LONGEST_CHECK = 12
"""Tokens of each row when a model is checked: more would find no other faults."""


class TransformersShape(NamedTuple):
    """The sizes of the model that a cache must know, as `sequences.KeptShape`."""

    name: str
    vocab_size: int
    """Rows of its embedding."""
    n_layers: int
    """Layers that keep keys and values."""
    n_kv_heads: int
    head_dim: int
    """The most heads and the widest that a layer keeps. A cache fills smaller ones up with zeros."""
    kept_elements: int
    """The numbers that all layers keep of a token."""
    max_seq_len: float
    """Infinite where its configuration names no limit."""
    windows: tuple[int | None, ...]
    positions: str = "the model's own"
    window: None = None
    """Masks are the model's own."""


class TransformersModel(nn.Module):
    """The model as `SequenceCache` calls one."""

    def __init__(self, module: nn.Module, name: str) -> None:
        """
        Args:
            module: of transformers, in the type and on the device of its passes.
            name: for reports and errors.

        Raises:
            PeakwardError: it keeps something else than keys and values, or its tokens one by one have other
                logits than all at once.
        """
        super().__init__()
        assert isinstance(module, PreTrainedModel)
        self.module = module
        parameters = inspect.signature(module.forward).parameters
        self._takes_positions = "position_ids" in parameters
        self._takes_n_logits = "logits_to_keep" in parameters
        self.captured = bool(getattr(module, "_can_compile_fullgraph", False))
        """Whether a step can be a CUDA graph: transformers says which of its models are computed without a
        look at their numbers by the host."""
        self.shape = _shape(module, name, self)
        _expect_recomputation(self)

    @property
    def embedding(self) -> nn.Embedding:
        """The embedding of its tokens."""
        found = self.module.get_input_embeddings()
        assert isinstance(found, nn.Embedding)  # `_shape` has seen that it is.
        return found

    @property
    def countable(self) -> bool:
        """Whether it is known which weights, keys and values a step reads: not where a token takes some of
        the experts, nor of layers that keep unequally much and attend unequally far."""
        shape, text = self.shape, self.module.config.get_text_config()
        has_experts = any(
            "expert" in name and isinstance(number, int) and number > 1
            for name, number in text.to_dict().items()
        )
        widest = 2 * shape.n_layers * shape.n_kv_heads * shape.head_dim
        alike = shape.kept_elements == widest or len(set(shape.windows)) == 1
        return alike and not has_experts

    @property
    def kind(self) -> str:
        """The name of its class."""
        return type(self.module).__name__

    def forward(self, ids: Tensor, *, cache: Pass, n_logits: int) -> Tensor:
        """ids (rows, n) behind what the rows of the pass hold → the logits behind the last `n_logits` of
        them, (rows, n_logits, vocab)."""
        # Pages may have more slots than the longest row has tokens.
        slots = None if cache.is_first else cache.cache.slots(cache)
        n_slots = cache.n if slots is None else slots.shape[-1]
        held = Cache(layers=[_Layer(each, n_slots) for each in cache.layers])
        with _masks_of(cache.own, slots):
            given = self._inputs(ids, cache.own, n_logits)
            found = self.module(**given, past_key_values=held, use_cache=True)
        logits: Tensor = found.logits[:, -n_logits:]
        return logits

    def alone(self, ids: Tensor) -> Tensor:
        """The logits behind each of ids (rows, n), without a cache: (rows, n, vocab)."""
        own = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        found: Tensor = self.module(**self._inputs(ids, own, 0), use_cache=False).logits
        return found

    def _inputs(self, ids: Tensor, own: Tensor, n_logits: int) -> dict[str, Any]:
        given: dict[str, Any] = {"input_ids": ids}
        if self._takes_positions:
            given["position_ids"] = own
        if self._takes_n_logits:
            given["logits_to_keep"] = n_logits
        return given


class _Layer(CacheLayerMixin):
    """A layer of a pass, as transformers' attention asks for it."""

    is_sliding = False
    is_compileable = False

    def __init__(self, kept: PassLayer, n_slots: int) -> None:
        super().__init__()
        self._kept, self._n_slots = kept, n_slots
        self.is_initialized = True

    def lazy_initialization(self, *_: Any, **__: Any) -> None:
        """The cache has its memory already."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes keys and values (rows, kv_heads, n, width of each) behind those held, and gives those to
        attend to."""
        given, shape = (key_states, value_states), self._kept.at.cache.shape
        k, v = (
            pad(
                each,
                (0, shape.head_dim - each.shape[-1], 0, 0, 0, shape.n_kv_heads - each.shape[1]),
            )
            for each in given
        )
        held = zip(self._kept.extend(k, v, window=None), given, strict=True)
        keys, values = (each[:, : own.shape[1], :, : own.shape[-1]] for each, own in held)
        return keys, values

    def get_mask_sizes(self, *_: Any) -> tuple[int, int]:
        """The slots that `update` gives, and the position of the first."""
        return self._n_slots, 0

    def get_seq_length(self) -> int:
        """The slots before those of the new tokens, if these were the last."""
        return self._n_slots - self._kept.at.n

    def get_max_length(self) -> int:
        """As of a cache that grows."""
        return -1

    get_max_cache_shape = get_max_length
    """Its name before transformers 5.18."""


@contextmanager
def _masks_of(own: Tensor, slots: Tensor | None) -> Iterator[None]:
    """While it lasts, models of transformers mask as they would at these positions.

    transformers asks a rule for (row, head, query, key), with queries at the same positions in all rows.
    Here it is asked with those of each row. The table of its functions is the process's own, so that no other
    thread may call a model of transformers meanwhile.

    Args:
        own: the positions of the new tokens, (rows, n).
        slots: the position that each slot holds, broadcast to (rows, slots); None: the rows were empty, and
            need no other masks.
    """
    if slots is None:
        yield
        return
    table = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    queries, keys = own[:, None, :, None], slots[:, None, None, :]
    row = torch.arange(len(own), device=own.device)[:, None, None, None]
    there = (keys != EMPTY) & (keys <= queries)

    def seen(*, mask_function: Any, **_: Any) -> Tensor:
        rule: Tensor = mask_function(row, torch.zeros_like(row[:1]), queries, keys)
        return rule & there

    def added(*, dtype: torch.dtype, **asked: Any) -> Tensor:
        zeros = torch.zeros((), dtype=dtype, device=queries.device)
        return zeros.masked_fill(~seen(**asked), torch.finfo(dtype).min)

    table["sdpa"], table["eager"] = seen, added
    try:
        yield
    finally:
        del table["sdpa"], table["eager"]


@torch.inference_mode()
def _shape(module: PreTrainedModel, name: str, model: TransformersModel) -> TransformersShape:
    """
    Raises:
        PeakwardError: as `TransformersModel` says.
    """
    embedding = module.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding):
        raise _refused(name, model, "no embedding of tokens")
    if "past_key_values" not in inspect.signature(module.forward).parameters:
        raise _refused(name, model, "no cache of keys and values")
    held = DynamicCache(config=module.config)
    _expect_plain(held, name, model)
    ids = torch.zeros((1, 1), dtype=torch.int64, device=embedding.weight.device)
    module(**model._inputs(ids, ids, 1), past_key_values=held, use_cache=True)
    _expect_plain(held, name, model)
    layers: list[Any] = held.layers
    # A layer that uses another's keys and values keeps none.
    kept = [part for each in layers if each.keys is not None for part in (each.keys, each.values)]
    limit = getattr(module.config.get_text_config(), "max_position_embeddings", None)
    return TransformersShape(
        name=name,
        vocab_size=embedding.num_embeddings,
        n_layers=len(layers),
        n_kv_heads=max(each.shape[1] for each in kept),
        head_dim=max(each.shape[-1] for each in kept),
        kept_elements=sum(each.numel() for each in kept),
        max_seq_len=limit if isinstance(limit, int) else inf,
        windows=tuple(getattr(each, "sliding_window", None) for each in layers),
    )


def _expect_plain(held: DynamicCache, name: str, model: TransformersModel) -> None:
    others = sorted({type(each).__name__ for each in held.layers if type(each) not in PLAIN})
    if others:
        raise _refused(name, model, f"states that are no keys and values ({others[0]})")


def _refused(name: str, model: TransformersModel, has: str) -> PeakwardError:
    return PeakwardError(
        f"expected a model of transformers that keeps keys and values, got {name} ({model.kind}) with {has}: "
        "generate with transformers itself"
    )


@torch.inference_mode()
def _expect_recomputation(model: TransformersModel) -> None:
    """Compares tokens one by one, in rows of unequal lengths, with all at once.

    Wrong masks change logits by 0.4 to 1.0 of their norm (BERT without `is_decoder`, BigBird), rounding by
    1e-6 in fp32. The median over tokens is held to twice the root of the type's epsilon, because a router may
    take another expert where two are nearly equal.

    Raises:
        PeakwardError: they differ.
    """
    shape, weight = model.shape, model.embedding.weight
    n = int(min(LONGEST_CHECK, shape.max_seq_len))
    drawn = torch.Generator().manual_seed(0)
    ids = torch.randint(shape.vocab_size, (2, n), generator=drawn).to(weight.device)
    whole = model.alone(ids)
    cache = ContiguousCache(
        shape, n_rows=2, capacity=n, device=str(weight.device), dtype=weight.dtype
    )
    held = [n // 2, n // 4]
    pairs = [
        (cache.prefill(model, row, ids[row, :length].tolist()), whole[row : row + 1, length - 1])
        for row, length in enumerate(held)
    ]
    rows = torch.arange(2)
    for each in range(n - n // 2):
        at = torch.tensor(held) + each
        pairs.append((cache.step(model, ids[rows, at][:, None]), whole[rows, at]))
    one_by_one, at_once = (torch.cat(each).double() for each in zip(*pairs, strict=True))
    error = (one_by_one - at_once).norm(dim=-1) / at_once.norm(dim=-1)
    if not error.median() < 2 * torch.finfo(weight.dtype).eps ** 0.5:
        raise _refused(shape.name, model, "other logits for tokens one by one than for all at once")
