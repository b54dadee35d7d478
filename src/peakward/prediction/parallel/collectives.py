"""The time of a collective over the links of a cluster, by NCCL's own model of its algorithms.

NCCL predicts the time of each algorithm and protocol by latency + bytes / bandwidth and takes the least
(NVIDIA/nccl, src/graph/tuning.cc at 01afd20, of 2020 and so before Hopper). Its latencies and the factors of
its protocols are those of that version, but for the plateau's, which is of later ones; the bandwidth is the
link's rate by the share that large collectives reach. A ring goes through all ranks; a tree, for sums alone,
through the nodes in log2 steps and through a chain of the ranks inside each. Left out: its caps on trees,
on LL128 (taken on every device here) and on A100s, sums inside of switches (NVLS, SHARP), and what
collectives of several axes that run at once take from one another.
"""

import math
from functools import lru_cache
from typing import Literal, NamedTuple

from peakward.prediction.communication import REACHED
from peakward.records.layout import Collective
from peakward.records.layouts import Interconnect

Algorithm = Literal["ring", "tree"]
Protocol = Literal["LL", "LL128", "Simple"]

NETWORK_REACHED = 0.94
"""Share of a network adapter's rate that large collectives reach: 46 to 48 of 50 GB/s
(NVIDIA/nccl-tests issue 290), 96 of 100 over four adapters of 25 (issue 119)."""
GATHER_REACHED = 0.59
"""Share of a node's link that large gatherings and reductions to shards reach: 265 and 268 of 450 GB/s for
1 GB on two H200s (results/2026-11-27-h200-parallel). More ranks were not measured."""
LOST_BESIDE = 0.6
"""Share of a collective's time that the arithmetic beside it loses, to its multiprocessors, its traffic
and its power: the median of six steps on two and four H200s that were not kept, of 0.14 to 1.0. By
results/2026-11-27-h200-parallel steps of ddp are still predicted some 10% short."""

_BASE_S: dict[tuple[Algorithm, Protocol], float] = {
    ("tree", "LL"): 4.4e-6,
    ("tree", "LL128"): 4.4e-6,
    ("tree", "Simple"): 0.0,
    ("ring", "LL"): 3.6e-6,
    ("ring", "LL128"): 10.0e-6,
    ("ring", "Simple"): 8.4e-6,
}
_HOP_S: dict[tuple[Algorithm, Protocol], tuple[float, float]] = {
    ("tree", "LL"): (0.52e-6, 5.0e-6),
    ("tree", "LL128"): (1.2e-6, 8.5e-6),
    ("tree", "Simple"): (28e-6, 50e-6),
    ("ring", "LL"): (0.47e-6, 2.7e-6),
    ("ring", "LL128"): (1.9e-6, 4.0e-6),
    ("ring", "Simple"): (3.4e-6, 9.6e-6),
}
"""The latency of one step over NVLink, and over the network."""
_LL_ACROSS = 1.8
"""A step of the protocol LL inside a node takes so much longer where others cross the network."""
_PLATEAU = 1.4
"""Likewise all steps of a ring of several nodes, for sums of more than 4 KiB a rank; 1.9 before Ampere."""
_PLATEAU_BYTES = 4096
_LL_RING, _LL_TREE = 1 / 4, 1 / 3.8
_LL128, _LL128_ALONE, _TREE = 0.92, 0.7, 0.9
"""Shares of the bandwidth: of LL in a ring (of gatherings inside a node NCCL has 1/3) and in a tree; of
LL128, and where a node has one rank of the group; of a tree."""
_TREE_SHARE: dict[Protocol, tuple[float, ...]] = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "LL128": (
        *(1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8),
        *(0.9, 0.9),
    ),
    "Simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5),
        *(0.6, 0.6, 0.7, 0.8, 0.9),
    ),
}
"""The share of its bandwidth that a tree of 64 bytes, 128 bytes, … reaches: medium sizes fall short."""


class Group(NamedTuple):
    """The ranks of one axis that communicate."""

    n_ranks: int
    in_node: int
    """The ranks of the group in one node."""

    @property
    def n_nodes(self) -> int:
        """Nodes that they are spread over."""
        return math.ceil(self.n_ranks / self.in_node)


class Transfer(NamedTuple):
    """One call."""

    time_s: float
    sent_bytes: float
    """By each rank, on the bus of nccl-tests."""
    algorithm: str
    """Such as "ring, Simple"."""


def group(n_ranks: int, stride: int, gpus_per_node: int) -> Group:
    """The ranks of an axis whose neighbours are `stride` ranks apart, nodes filled one after another."""
    return Group(n_ranks, min(n_ranks, math.ceil(gpus_per_node / stride)))


@lru_cache(maxsize=65_536)
def collective(kind: Collective, n_bytes: float, over: Group, links: Interconnect) -> Transfer:
    """One call of a collective.

    Args:
        n_bytes: as `records.parallel.CollectiveTime` has it: the whole tensor.
    """
    n = over.n_ranks
    if n == 1 or not n_bytes:
        return Transfer(0.0, 0.0, "none")
    steps = {"all-reduce": 2 * (n - 1), "point-to-point": n}.get(kind, n - 1)
    sent = n_bytes * steps / n
    if kind == "all-to-all":
        return Transfer(_all_to_all_s(n_bytes, over, links), sent, "direct")
    if kind == "point-to-point":
        base_s = _BASE_S["ring", "Simple"]
        return Transfer(base_s + sent / bus_bytes_per_s(over, links), sent, "direct")
    found = []
    reached = REACHED.estimate if kind == "all-reduce" else GATHER_REACHED
    of_ring = bus_bytes_per_s(over, links, reached=reached)
    for algorithm in ("ring", "tree") if kind == "all-reduce" else ("ring",):
        for protocol in ("LL", "LL128", "Simple"):
            time_s = _latency_s(kind, n_bytes, over, algorithm, protocol)
            time_s += sent / _rate(of_ring, algorithm, protocol, n_bytes, over)
            found.append((time_s, f"{algorithm}, {protocol}"))
    time_s, chosen = min(found)
    return Transfer(time_s, sent, chosen)


def _all_to_all_s(n_bytes: float, over: Group, links: Interconnect) -> float:
    """Each rank sends a part to every other: those of its node over the link, and at the same time the rest
    by its own adapter, which no other rank shares as in a ring. Over the link two H200s moved 329 GB/s of
    1,000 MB and 255 of 100, where this has 360 (results/2026-11-27-h200-parallel)."""
    of_each = n_bytes / over.n_ranks
    inside_s = of_each * (over.in_node - 1) / (REACHED.estimate * links.link_bytes_per_s)
    base_s = _BASE_S["ring", "Simple"]
    if over.n_nodes == 1:
        return base_s + inside_s
    assert links.network_bytes_per_s is not None
    out = NETWORK_REACHED * links.network_bytes_per_s / links.oversubscription
    return base_s + max(inside_s, of_each * (over.n_ranks - over.in_node) / out)


def bus_bytes_per_s(
    over: Group, links: Interconnect, *, reached: float = REACHED.estimate
) -> float:
    """The rate at which each rank of a ring sends: of the node's link, of which a share is reached, or of the
    adapters of all its ranks in a node, which share one ring's way out."""
    inside = reached * links.link_bytes_per_s
    if over.n_nodes == 1:
        return inside
    assert links.network_bytes_per_s is not None
    out = NETWORK_REACHED * links.network_bytes_per_s * over.in_node / links.oversubscription
    return min(inside, out) if over.in_node > 1 else out


def _latency_s(
    kind: Collective, n_bytes: float, over: Group, algorithm: Algorithm, protocol: Protocol
) -> float:
    inside_s, across_s = _HOP_S[algorithm, protocol]
    n, nodes = over.n_ranks, over.n_nodes
    if nodes > 1 and protocol == "LL":
        inside_s *= _LL_ACROSS
    if algorithm == "tree":
        hops_s = 2 * ((over.in_node - 1) * inside_s + math.floor(math.log2(nodes)) * across_s)
        return _BASE_S["tree", protocol] + hops_s
    passes = 2 if kind == "all-reduce" else 1
    crossed = passes * (nodes - 1)
    time_s = _BASE_S["ring", protocol]
    time_s += (passes * (n - 1) - crossed) * inside_s + crossed * across_s
    is_flat = kind == "all-reduce" and nodes > 1 and n_bytes >= n * _PLATEAU_BYTES
    return time_s * _PLATEAU if is_flat and protocol == "Simple" else time_s


def _rate(
    of_ring: float, algorithm: Algorithm, protocol: Protocol, n_bytes: float, over: Group
) -> float:
    """The rate of the algorithm, of that of a ring whose protocol sends data alone."""
    if algorithm == "ring":
        alone = _LL128_ALONE if over.in_node == 1 else _LL128
        return of_ring * {"LL": _LL_RING, "LL128": alone, "Simple": 1.0}[protocol]
    inside = 7 / 9 if over.n_nodes == 1 else 0.915
    rate = of_ring * _TREE * {"LL": _LL_TREE, "LL128": inside, "Simple": 1.0}[protocol]
    share, size = _TREE_SHARE[protocol], max(0, int(n_bytes / 64).bit_length() - 1)
    # A tree sends everything up and down once, a ring (n - 1) / n of it twice.
    return rate * (share[size] if size < len(share) else 1.0) * (over.n_ranks - 1) / over.n_ranks
