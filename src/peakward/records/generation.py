"""Text that a model generated: how it was chosen, and how long it took."""

import msgspec


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the next token is chosen from the logits."""

    temperature: float = 0.0
    """The logits are divided by it; 0 takes the likeliest token."""
    top_k: int | None = None
    """Only that many of the likeliest tokens are chosen from."""
    top_p: float | None = None
    """Only the fewest of the likeliest tokens whose probabilities sum to it are chosen from."""
    seed: int = 0
