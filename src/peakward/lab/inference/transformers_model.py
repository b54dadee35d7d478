"""A causal language model of transformers on the caches of generation.

It computes as its authors wrote it. In the place of transformers' cache it is handed one whose layers write
to and read from a `SequenceCache`, with the position of each token in its own row. Its masks follow its own
rules (windows, chunks), asked at these positions, so that rows of any lengths go on together.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import inf
from threading import RLock
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import masking_utils
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)
from transformers.modeling_utils import PreTrainedModel

from peakward.lab.inference.passes import EMPTY, Pass, PassLayer
from peakward.lab.inference.sequences import OF_THE_MODULE, ContiguousCache
from peakward.records.errors import PeakwardError

PLAIN = (DynamicLayer, DynamicSlidingWindowLayer)
"""transformers' layers of a cache that hold keys and values and nothing else."""
LONGEST_CHECK = 12
"""Tokens of each row when a model is checked."""
CHECKED_SLOTS = 512
"""Slots of that cache: a model that counts them in the place of tokens shows it (GPT-Neo's window of 256)."""
PRETENDED = 2**20
"""Tokens more than any model counts alike."""
MOST_NOISE = 8
"""How many times the difference of two equal passes is still taken for noise."""
ONE_AT_A_TIME = RLock()
"""Held while a model is loaded or called: transformers changes tables of the process meanwhile, and we do."""


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
    positions: str = OF_THE_MODULE
    window: None = None
    """Masks are the model's own."""


CACHE_AS = ("cache", "past_key_values")
"""The name by which a model takes its cache: since transformers 5.24, and before."""


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
        self._cache_as = next((each for each in CACHE_AS if each in parameters), None)
        by_host = "dynamic" in _rope_types(module)  # Angles follow the largest position of a pass.
        self.captured = bool(getattr(module, "_can_compile_fullgraph", False)) and not by_host
        """Whether a step can be a CUDA graph: transformers says which of its models are computed without a
        look at their numbers by the host."""
        self.n_pretended = 0
        """Tokens that a pass says are held beside those that are; for `_expect_recomputation`."""
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
            "expert" in name and number > 1 for name, number in _numbers(text.to_dict())
        )
        widest = 2 * shape.n_layers * shape.n_kv_heads * shape.head_dim
        alike = shape.kept_elements == widest or len(set(shape.windows)) == 1
        return alike and not has_experts

    @property
    def computing(self) -> tuple[nn.Module, ...]:
        """The modules that a pass over text computes: a model of images has others beside them."""
        found = (self.module.get_decoder(), self.module.get_output_embeddings())
        parts = tuple(each for each in found if isinstance(each, nn.Module))
        return parts if len(parts) == len(found) else (self.module,)

    @property
    def kind(self) -> str:
        """The name of its class."""
        return type(self.module).__name__

    def forward(self, ids: Tensor, *, cache: Pass, n_logits: int) -> Tensor:
        """ids (rows, n) behind what the rows of the pass hold → the logits behind the last `n_logits` of
        them, (rows, n_logits, vocab).

        Raises:
            PeakwardError: a cache that attends by itself, which knows nothing of the model's masks.
        """
        if cache.cache.attends(1):
            raise PeakwardError(
                f"expected a cache that leaves attention to {self.shape.name}, which transformers computes, "
                f"got a {type(cache.cache).__name__} that attends by itself: make one as-model"
            )
        # Pages may have more slots than the longest row has tokens.
        slots = None if cache.is_first else cache.cache.slots(cache)
        n_slots = cache.n if slots is None else slots.shape[-1]
        n_before = n_slots - cache.n + self.n_pretended
        held = Cache(layers=[_Layer(each, n_slots, n_before) for each in cache.layers])
        with ONE_AT_A_TIME, _masks_of(cache.own, slots):
            given = self._inputs(ids, cache.own, n_logits)
            found = self.module(**given, **self._with(held))
        logits: Tensor = found.logits[:, -n_logits:]
        return logits

    def alone(self, ids: Tensor) -> Tensor:
        """The logits behind each of ids (rows, n), without a cache: (rows, n, vocab)."""
        own = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        with ONE_AT_A_TIME:  # The masks are the process's own.
            found: Tensor = self.module(**self._inputs(ids, own, 0), use_cache=False).logits
        return found

    def _with(self, held: Cache) -> dict[str, Any]:
        return {} if self._cache_as is None else {self._cache_as: held, "use_cache": True}

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

    def __init__(self, kept: PassLayer, n_slots: int, n_before: int) -> None:
        super().__init__()
        self._kept, self._n_slots, self._n_before = kept, n_slots, n_before
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
        if self._kept.at.is_first or keys.stride(1) > keys.stride(2):
            return keys, values
        # Gathered from pages, positions are outside of heads. Some models view them the other way round.
        return keys.contiguous(), values.contiguous()

    def get_mask_sizes(self, *_: Any) -> tuple[int, int]:
        """The slots that `update` gives, and the position of the first."""
        return self._n_slots, 0

    def get_seq_length(self) -> int:
        """The slots before those of the new tokens, if these were the last."""
        return self._n_before

    def get_max_length(self) -> int:
        """As of a cache that grows."""
        return -1

    get_max_cache_shape = get_max_length
    """Its name in earlier versions of transformers."""


@contextmanager
def _masks_of(own: Tensor, slots: Tensor | None) -> Iterator[None]:
    """While it lasts, models of transformers mask as they would at these positions.

    transformers asks a rule for (row, head, query, key), with queries at the same positions in all rows.
    Here it is asked with those of each row. The table of its functions is the process's own, so that no other
    thread may call a model of transformers meanwhile, but for one of this class (`ONE_AT_A_TIME`).

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

    before = dict(table._local_mapping)
    table["sdpa"], table["eager"] = seen, added
    try:
        yield
    finally:
        table._local_mapping = before


@torch.inference_mode()
def _shape(module: PreTrainedModel, name: str, model: TransformersModel) -> TransformersShape:
    """
    Raises:
        PeakwardError: as `TransformersModel` says.
    """
    embedding = module.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding):
        raise _refused(name, model, "no embedding of tokens")
    if model._cache_as is None:
        raise _refused(name, model, "no cache of keys and values")
    held = DynamicCache(config=module.config)
    _expect_plain(held, name, model)
    ids = torch.zeros((1, 1), dtype=torch.int64, device=embedding.weight.device)
    with ONE_AT_A_TIME:
        module(**model._inputs(ids, ids, 1), **model._with(held))
    _expect_plain(held, name, model)
    layers: list[Any] = held.layers
    # A layer that uses another's keys and values keeps none.
    kept = [part for each in layers if each.keys is not None for part in (each.keys, each.values)]
    return TransformersShape(
        name=name,
        vocab_size=embedding.num_embeddings,
        n_layers=len(layers),
        n_kv_heads=max(each.shape[1] for each in kept),
        head_dim=max(each.shape[-1] for each in kept),
        kept_elements=sum(each.numel() for each in kept),
        max_seq_len=_limit(module),
        windows=tuple(getattr(each, "sliding_window", None) for each in layers),
    )


def _limit(module: PreTrainedModel) -> float:
    """The longest text. The angles of longrope change for a whole text where it goes beyond the length that
    the model was first trained for, so that it would have to be computed anew from its start."""
    text = module.config.get_text_config()
    limits = [getattr(text, each, None) for each in ("max_position_embeddings", "max_seq_len")]
    if "longrope" in _rope_types(module):
        limits += [
            number
            for name, number in _numbers(text.to_dict())
            if name == "original_max_position_embeddings"
        ]
    return min((each for each in limits if isinstance(each, int)), default=inf)


def _rope_types(module: PreTrainedModel) -> set[str]:
    """The ways in which its layers scale the angles of RoPE."""
    given = getattr(module.config.get_text_config(), "rope_parameters", None) or {}
    nested = [each for each in given.values() if isinstance(each, dict)]
    return {str(each.get("rope_type")) for each in (given, *nested)}


def _numbers(given: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The whole numbers of a configuration by name, at any depth and in lists too."""
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, int) and not isinstance(each, bool):
                yield str(name), each


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
    """Compares tokens one by one, in rows of unequal lengths and among many empty slots, with all at once.

    Wrong positions or masks change logits by 0.3 to 1.0 of their norm (BERT without `is_decoder`, BART's
    decoder in a shorter row), rounding by 1e-6 in fp32. The median over a row's tokens is held to twice the
    root of the type's epsilon, because a router may take another expert where two are nearly equal.

    Raises:
        PeakwardError: they differ.
    """
    shape, weight = model.shape, model.embedding.weight
    n, device = int(min(LONGEST_CHECK, shape.max_seq_len)), weight.device
    drawn = torch.Generator().manual_seed(0)
    ids = torch.randint(shape.vocab_size, (2, n), generator=drawn).to(device)
    whole = model.alone(ids)
    n_slots = int(min(CHECKED_SLOTS, shape.max_seq_len))
    cache = ContiguousCache(
        shape, n_rows=2, capacity=n_slots, device=str(device), dtype=weight.dtype
    )
    held, active = [n // 2, n // 4], torch.ones(2, dtype=torch.bool, device=device)
    for row, length in enumerate(held):
        cache.prefill(model, row, ids[row, :length].tolist())
    rows, errors = torch.arange(2), []
    for each in range(n - held[0]):
        at = torch.tensor(held) + each
        given, expected = ids[rows, at][:, None], whole[rows, at].double()
        found = cache.score(model, given, active, n_slots)[:, -1].double()
        errors.append((found - expected).norm(dim=-1) / expected.norm(dim=-1))
        cache.held += 1
    worst = torch.stack(errors).median(0).values.max()
    if not worst < 2 * torch.finfo(weight.dtype).eps ** 0.5:
        raise _refused(shape.name, model, "other logits for tokens one by one than for all at once")
    # Behind that, because a model that takes positions from it would look them up beyond its table, which
    # ends the use of a GPU in this process.
    cache.held -= 1
    if _counts_slots(model, cache, given, active):
        raise _refused(shape.name, model, "a count of the slots that it takes for tokens")


def _counts_slots(
    model: TransformersModel, cache: ContiguousCache, ids: Tensor, active: Tensor
) -> bool:
    """Whether logits change where a pass says that more tokens are held, as those of Llama 4, which scales
    queries by that number. Equal passes may differ too, where sums of experts are added in any order. A model
    that makes a mask of the number ends in an error, because the mask has no fitting size."""

    def logits() -> Tensor:
        return cache.score(model, ids, active, int(cache.limit))[:, -1].double()

    first, again = logits(), logits()
    model.n_pretended = PRETENDED
    try:
        pretended = logits()
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, IndexError):
        return False
    finally:
        model.n_pretended = 0
    return bool((pretended - first).norm() > MOST_NOISE * (again - first).norm())
