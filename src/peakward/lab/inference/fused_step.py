"""One step of decode in five kernels a layer, each launched while the one before it still runs.

They are: norm, projection, rotation and the write to the cache; attention with its join, and on a cache in
int8 the write; output projection and residual; norm, gate and up, and their product; down projection and
residual. The embedding comes before them, the last norm and the output layer behind, and in a greedy loop the
choice of the token.
`kernels.ops.decode_step` has the kernels and says why their order is safe.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from peakward.kernels.ops.decode_step.triton import launch as kernels
from peakward.kernels.ops.decode_step.triton.launch import Held, Texts
from peakward.kernels.ops.decode_step.triton.settings import Cut, RowsCut
from peakward.lab.inference.decoding import Decoding
from peakward.lab.inference.fused_chains import Cuts, OneRow, SeveralRows
from peakward.lab.inference.fused_parts import weights_of
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.passes import Pass
from peakward.lab.inference.sequences import ContiguousCache
from peakward.lab.inference.storage import Storage
from peakward.lab.models.decoder import Block, Decoder
from peakward.lab.models.layers import KINDS
from peakward.levers.decode_step import MOST_TOKENS, guesses_obstacle, model_obstacle
from peakward.records.case import StoredWeights
from peakward.records.errors import PeakwardError
from peakward.records.generation import Sampling


class FusedStep:
    """Steps of a decoder for the rows of a cache, of equally many new tokens each.

    Args:
        model: of RMSNorm, RoPE and SwiGLU, without biases but qkv's.
        held: of each layer keys and values (sequences, kv_heads, capacity, head_dim), or with `block_table`
            pages; in the model's type, or of a bf16 or fp32 model in int8.
        block_table: of all layers, see `launch.Held`.
        cuts: of `Cut` for one new token in all, of `RowsCut` for more; None: by rule.
        n_new: the new tokens of a sequence, of 16 at most in all.

    Raises:
        PeakwardError: a model that the kernels do not compute, more than 16 new tokens, or a cache of another
            type.
    """

    def __init__(
        self,
        model: Decoder,
        held: Sequence[Storage],
        cuts: Cuts[Cut] | Cuts[RowsCut] | None = None,
        *,
        block_table: Tensor | None = None,
        n_new: int = 1,
    ) -> None:
        layers = [Held(*each, block_table) for each in held]
        self.n_rows = layers[0].n_sequences * n_new
        _refuse(model, held[0], self.n_rows)
        weights, shape = weights_of(model, layers), model.shape
        self._chain: OneRow | SeveralRows
        if self.n_rows == 1:
            self._chain = OneRow(shape, weights, cuts)  # type: ignore[arg-type]
        else:
            self._chain = SeveralRows(shape, weights, self.n_rows, cuts)  # type: ignore[arg-type]
        self.cuts = self._chain.cuts
        self._table, self._n_logits = weights.table, weights.head.n
        self._keys = torch.empty(
            (self.n_rows, self._chain.n_keys), dtype=torch.int64, device=weights.table.device
        )

    def __call__(self, ids: Tensor, position: Tensor) -> Tensor:
        """Takes ids (rows,), the n_new of a sequence beside one another and the first of them at its
        `position` (sequences,), all on the device: the logits behind each, (rows, vocab).

        A captured step reads both where they were, so whoever replays it keeps them: a token that is none
        is an illegal access."""
        logits = self._table.new_empty(self.n_rows, self._n_logits)
        # Kernels read both as neighbours; a column of texts, flattened, is a view with gaps.
        self._chain(ids.contiguous(), position.contiguous(), logits)
        return logits

    def choose(self, texts: Texts) -> None:
        """Takes the newest token of each text and chooses the next one, the likeliest, without logits: see
        `kernels.chosen`. For one new token of each."""
        self._chain(texts.ids[:, 0], texts.held, self._keys)
        kernels.chosen(self._keys, texts)


class FusedDecoder(nn.Module):
    """A decoder that makes a pass as one fused step if the pass has at most 16 new tokens in all.

    Prompts, passes of more tokens, and passes of several tokens of a sequence that `guesses_obstacle` is
    against go through its modules. It is called as the decoder is, and is for one cache.

    The step reads its positions on the device, so that one captured step serves every length.

    Args:
        model: as `FusedStep`.
        cache: of at most 16 rows.

    Raises:
        PeakwardError: as `FusedStep`.
    """

    def __init__(self, model: Decoder, cache: ContiguousCache | PagedCache) -> None:
        super().__init__()
        self.model, self._cache = model, cache
        obstacle = guesses_obstacle(
            _stored(model), "static" if cache.storage.k_scale is None else "int8"
        )
        self._most = MOST_TOKENS if obstacle is None else len(cache.lengths)
        self._steps: dict[int, FusedStep] = {}
        self.step(1)

    def step(self, n_new: int) -> FusedStep:
        """The step of so many new tokens of each row."""
        if n_new not in self._steps:
            held = self._cache.storage.layers
            table = self._cache.block_table if isinstance(self._cache, PagedCache) else None
            self._steps[n_new] = FusedStep(self.model, held, block_table=table, n_new=n_new)
        return self._steps[n_new]

    def forward(self, ids: Tensor, cache: Pass, n_logits: int = 1) -> Tensor:
        """As `Decoder.forward` with a pass of this object's cache: the logits (rows, n_logits, vocab)."""
        if cache.is_first or ids.numel() > self._most or len(ids) < len(self._cache.lengths):
            logits: Tensor = self.model(ids, cache=cache, n_logits=n_logits)
            return logits
        logits = self.step(cache.n)(ids.flatten(), self._cache.held)
        return logits.view(*ids.shape, -1)[:, -n_logits:]


class FusedDecoding(Decoding):
    """A `Decoding` on fused steps. The greedy one chooses its tokens within them, so that no operator of
    torch stands between two steps; others choose from the step's logits."""

    def __init__(
        self,
        model: Decoder,
        cache: ContiguousCache | PagedCache,
        *,
        by: Sampling,
        most_new_tokens: int,
        ends: frozenset[int] = frozenset(),
    ) -> None:
        """As `Decoding` and `FusedDecoder`."""
        fused = FusedDecoder(model, cache)
        super().__init__(fused, cache, by=by, most_new_tokens=most_new_tokens, ends=ends)
        self._fused = fused.step(1)
        self._texts = Texts(
            ids=self._ids,
            held=cache.held,
            out=self._out,
            made=self._made,
            most=self._most,
            ended=self._ended,
            ends=self._ends,
        )

    def _step(self, longest: int) -> None:
        if self.by.temperature:
            super()._step(longest)
        else:
            self._fused.choose(self._texts)


def _refuse(model: Decoder, held: Storage, n_rows: int) -> None:
    dtype = model.embedding.weight.dtype
    reason = model_obstacle(model.shape, _stored(model))
    if reason is not None:
        raise PeakwardError(f"expected a model that the kernels compute: {reason}")
    if n_rows > MOST_TOKENS:
        raise PeakwardError(
            f"expected at most {MOST_TOKENS} new tokens in a step, got {n_rows}: take separate kernels"
        )
    # Weights times scales would leave the range of fp16.
    types = [dtype] if dtype == torch.float16 else [dtype, torch.int8]
    stored = held.keys.dtype
    if stored not in types or not all(each.is_contiguous() for each in held.parts):
        raise PeakwardError(
            f"expected keys and values in {' or '.join(map(str, types))} beside a model in {dtype}, without "
            f"gaps, got {stored}: take a ContiguousCache or a PagedCache of that type"
        )


def _stored(model: Decoder) -> StoredWeights:
    """The form of the blocks' weights."""
    block = model.blocks[0]
    assert isinstance(block, Block)
    linear = block.attention.qkv
    return next((name for name, kind in KINDS.items() if type(linear) is kind), "dense")
