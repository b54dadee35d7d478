"""Which keys a mask lets queries see, read off its values, and the fact that this rests on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, fx

from peakward.lab.rewriting.dataflow import Constant, Leaves, constant

HIDES = -1e4
"""The most that is added to hide a key: exp(-1e4) is 0 in every type. GPT-2's was -1e4."""


class Visible(NamedTuple):
    """The keys that a mask lets queries see, at one length."""

    kind: Literal["all", "causal", "window", "other"]
    """Causal and windowed: both sequences end together."""
    window: int | None = None
    """Keys that a query sees, its own among them."""


OTHER = Visible("other")


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A property of a module's own tensors that a replacement rests on."""

    claim: str
    """The words of a warning: "the mask is causal"."""
    places: tuple[int, ...]
    """The graph's inputs that it is about."""
    holds: Callable[[Sequence[Any]], bool]
    """Looks at the graph's inputs, and waits for the device."""


class Seen(NamedTuple):
    """The mask of an attention, read."""

    visible: Visible
    fact: Fact | None = None
    at_boundary: bool = False
    """The mask comes from outside the graph, and hid at this call what one that needs no mask hides."""
    may_hide_rows: bool = True
    """Whether there may be queries that see no key."""


def seen(mask: fx.Node, q_len: int, k_len: int, leaves: Leaves) -> Seen:
    """Reads a node's values. A mask that depends on inputs other than a module's own tensors is never
    taken for anything else than it is."""
    how = constant(mask, leaves)
    if how is None:
        return Seen(OTHER)
    try:
        found = _read(how, leaves.examples, q_len, k_len)
        hides_rows = bool((how.compute(leaves.examples) <= HIDES).all(-1).any())
    except Exception:  # noqa: BLE001  A mask of data may need what is not here; it is then passed on.
        return Seen(OTHER)
    if found.kind == "other":
        return Seen(found, may_hide_rows=hides_rows or not set(how.places) <= leaves.kept)
    if not set(how.places) <= leaves.kept:
        return Seen(OTHER, at_boundary=True)
    return Seen(found, _fact(found, how, q_len, k_len))


def _read(how: Constant, inputs: Sequence[Any], q_len: int, k_len: int) -> Visible:
    """Causal of fewer queries than keys is a window of all keys: torch's `is_causal` means another."""
    found = read(how.compute(inputs), q_len, k_len)
    return Visible("window", k_len) if found.kind == "causal" and q_len != k_len else found


def _fact(found: Visible, how: Constant, q_len: int, k_len: int) -> Fact | None:
    if not how.places:
        return None
    word = {"all": "hides nothing", "window": f"is a window of {found.window}"}
    return Fact(
        claim=f"the attention's mask {word.get(found.kind, f'is {found.kind}')}",
        places=how.places,
        holds=lambda inputs: _read(how, inputs, q_len, k_len) == found,
    )


def read(mask: Tensor, q_len: int, k_len: int) -> Visible:
    """Reads a mask for (q_len, k_len), in a time that grows with its values; waits for the device.

    Args:
        mask: what may be broadcast to (…, q_len, k_len): True where a key is seen, or what is added to
            the scores.
    """
    seen = mask if mask.dtype == torch.bool else mask == 0
    if mask.dtype != torch.bool and not bool((seen | (mask <= HIDES)).all()):
        return OTHER
    # A mask of fewer dimensions is the same for all queries; one of more may differ from head to head.
    seen = seen.expand(torch.broadcast_shapes(seen.shape, (q_len, k_len)))
    seen = seen.reshape(-1, q_len, k_len)
    if bool((seen != seen[:1]).any()):
        return OTHER
    seen = seen[0]
    if bool(seen.all()):
        return Visible("all")
    rows = torch.arange(q_len, device=seen.device)[:, None] + k_len - q_len
    distance = rows - torch.arange(k_len, device=seen.device)[None, :]
    if q_len > k_len or not bool(seen[-1, -1]):
        return OTHER
    if bool((seen == (distance >= 0)).all()):
        return Visible("causal")
    window = int(seen[-1].sum())
    banded = (distance >= 0) & (distance < window)
    return Visible("window", window) if bool((seen == banded).all()) else OTHER
