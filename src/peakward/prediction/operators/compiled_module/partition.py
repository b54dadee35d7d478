"""Decides what a compiled forward pass keeps for the backward pass, and what is computed again there.

After the partitioner of torch (`min_cut_rematerialization_partition` of `_functorch/partitioners.py`): of
all cuts between what the forward pass is given and what the backward pass needs, one whose values have the
least bytes, those far from the backward pass counted for more. Products, attention, draws, small figures of
large tensors, and what a call of the backward pass reads are never computed again.
"""

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from peakward.prediction.operators.compiled_module.loops import Loop, Read
from peakward.prediction.operators.compiled_module.min_cut import Network
from peakward.prediction.operators.compiled_module.parts import Part, Value

_FAR = 1.1
"""A value's bytes count for so many times more with each operator between it and the backward pass."""
_FARTHEST = 100
_SMALL = 4
"""A result so many times smaller than what it is made of is kept."""
_NEVER = 10**9
_BACKWARD = -1
"""In the place of a forward loop's number."""


class Split(NamedTuple):
    """The two graphs of a part, and the values between them."""

    forward: tuple[Loop, ...]
    backward: tuple[Loop, ...]
    """With what is computed again, each before its first use."""
    saved: tuple[int, ...]
    """Values that the forward pass keeps, those that it was given too."""
    values: tuple[Value, ...]
    """The part's, and behind them those computed again."""


def split(part: Part, kept: frozenset[str] | None = None) -> Split:
    """The part as a forward and a backward graph; without a backward pass all is forward.

    Args:
        part: to cut.
        kept: of a part that is recomputed, the operators whose results are kept beside what it is given
            (`must_recompute` in torch's partitioner); None where the least cut says what is kept.
    """
    forward = tuple(each for each in part.loops if not each.backward)
    backward = tuple(each for each in part.loops if each.backward)
    if not forward or not backward:
        return Split(forward, backward, (), part.values)
    users = _Users(part, forward, backward)
    saved = _saved(users) if kept is None else _needed(users, kept)
    graph, values = _with_recomputed(users, saved)
    return Split(forward, graph, tuple(sorted(saved)), values)


class _Users:
    """Who makes and who reads each value of the forward pass."""

    def __init__(self, part: Part, forward: Sequence[Loop], backward: Sequence[Loop]) -> None:
        self.part, self.forward, self.backward = part, forward, backward
        self.maker = {value: i for i, loop in enumerate(forward) for value in loop.writes}
        self.readers: dict[int, list[int]] = {}
        """Forward loops that read a value."""
        self.needed: dict[int, list[Loop]] = {}
        """Backward loops that read a value that is there before them."""
        for i, loop in enumerate(forward):
            for each in dict.fromkeys(read.value for read in loop.reads):
                self.readers.setdefault(each, []).append(i)
        made_late = {value for loop in backward for value in loop.writes}
        given = {value for value in self.readers if value not in self.maker}
        for loop in backward:
            for each in dict.fromkeys(read.value for read in loop.reads):
                if each in self.maker or (each in given and each not in made_late):
                    self.needed.setdefault(each, []).append(loop)
        self.distance = self._distances()

    def _distances(self) -> dict[int, int]:
        """Operators between each value and the backward pass."""
        far = dict.fromkeys(self.needed, 1)
        for i in range(len(self.forward) - 1, -1, -1):
            loop = self.forward[i]
            least = min((far.get(each, _NEVER) for each in loop.writes), default=_NEVER)
            for read in loop.reads:
                far[read.value] = min(far.get(read.value, _NEVER), least + 1)
        return far

    def fuses_into(self, value: int, reader: Loop) -> bool:
        """Whether the value need not be in memory for that reader. What is given always is."""
        if reader.name == "cat":
            return True
        maker = self.maker.get(value)
        return maker is not None and _is_fusible(self.forward[maker]) and _is_fusible(reader)

    def size(self, value: int) -> int:
        """Bytes of the value; of a given one those that are read as one."""
        return self.part.values[value].operand.n_bytes


def _is_fusible(loop: Loop) -> bool:
    """Whether the loop may be computed again, and so be fused; a concatenation is fused into nothing."""
    return loop.kind not in ("call", "scatter") and loop.name != "cat"


def _saved(users: _Users) -> set[int]:
    """The values of the least cut."""
    kept = _kept(users)
    network = Network(2 * len(users.part.values) + 2)
    source, sink = 2 * len(users.part.values), 2 * len(users.part.values) + 1
    relevant = [value for value, far in users.distance.items() if far < _NEVER]
    for value in relevant:
        network.edge(2 * value, 2 * value + 1, _weight(users, value))
        if value in kept or value not in users.maker:
            network.edge(source, 2 * value, None)
        if value in users.needed:
            network.edge(2 * value + 1, sink, None)
    for value in relevant:
        if value in users.maker and value not in kept:
            for each in dict.fromkeys(
                read.value for read in users.forward[users.maker[value]].reads
            ):
                network.edge(2 * each + 1, 2 * value, None)
    reached = network.source_side(source, sink)
    return {value for value in relevant if 2 * value in reached and 2 * value + 1 not in reached}


def _needed(users: _Users, kept: Collection[str]) -> set[int]:
    """The values that a recomputation begins from, those of these operators among them."""
    found, waiting = set[int](), list(users.needed)
    while waiting:
        value = waiting.pop()
        maker = users.maker.get(value)
        if maker is None or users.forward[maker].name in kept:
            found.add(value)
        else:
            waiting += [read.value for read in users.forward[maker].reads]
    return found


def _weight(users: _Users, value: int) -> int:
    """The cost of keeping a value: nothing of a parameter, which is there anyway; twice its bytes where the
    forward pass would else have no need to write it."""
    if users.part.values[value].origin == "parameter":
        return 0
    far = max(1, min(users.distance[value], _FARTHEST))
    weight = int(users.size(value) * _FAR**far)
    return weight if _is_written(users, value) else 2 * weight


def _is_written(users: _Users, value: int) -> bool:
    if value not in users.maker:
        return True
    loops = [
        *(users.forward[i] for i in users.readers.get(value, ())),
        *users.needed.get(value, ()),
    ]
    return not all(users.fuses_into(value, each) for each in loops)


def _kept(users: _Users) -> set[int]:
    """Values that are never computed again."""
    found = {
        value
        for value, maker in users.maker.items()
        if _is_dear(users, value, users.forward[maker])
    }
    return found | _used_far_apart(users, found)


def _is_dear(users: _Users, value: int, maker: Loop) -> bool:
    if maker.kind in ("call", "scatter") or maker.is_random:
        return True
    if any(not users.fuses_into(value, each) for each in users.needed.get(value, ())):
        return True
    return _SMALL * users.size(value) < sum(read.operand.n_bytes for read in maker.reads)


def _used_far_apart(users: _Users, kept: Collection[int]) -> set[int]:
    """Results of fusible loops that read a value again, behind a call that its other users lead to."""
    found: set[int] = set()
    for value, readers in users.readers.items():
        if len(readers) < 2:
            continue
        end = _first_call(users, readers)
        for i in readers:
            loop = users.forward[i]
            if i > end and users.fuses_into(value, loop):
                found.update(each for each in loop.writes if each not in kept)
    return found


def _first_call(users: _Users, readers: Sequence[int]) -> int:
    """The first loop on the way from these to the last of them that does not fuse with what it reads."""
    last, waiting, seen = max(readers), [(i, True) for i in readers], set(readers)
    heapq.heapify(waiting)
    while waiting:
        i, fuses = heapq.heappop(waiting)
        if not fuses:
            return i
        for value in users.forward[i].writes:
            for j in users.readers.get(value, ()):
                if j <= last and (j not in seen or not users.fuses_into(value, users.forward[j])):
                    seen.add(j)
                    heapq.heappush(waiting, (j, users.fuses_into(value, users.forward[j])))
    return last


def _with_recomputed(
    users: _Users, saved: Collection[int]
) -> tuple[tuple[Loop, ...], tuple[Value, ...]]:
    """The backward graph, which has of the forward loops those between what is kept and what it reads."""
    values, again = list(users.part.values), dict[int, int]()
    graph: list[Loop] = []

    def there(value: int) -> int:
        """The value's number in the backward graph."""
        if value in saved or value not in users.maker:
            return value
        if value not in again:
            loop = users.forward[users.maker[value]]
            reads = _renamed(loop.reads, {read.value: there(read.value) for read in loop.reads})
            for each in loop.writes:
                again[each] = len(values)
                values.append(users.part.values[each]._replace(leaves=False))
            made = tuple(again[each] for each in loop.writes)
            graph.append(loop._replace(backward=True, reads=reads, writes=made))
        return again[value]

    for loop in users.backward:
        names = {read.value: there(read.value) for read in loop.reads}
        graph.append(loop._replace(reads=_renamed(loop.reads, names)))
    return tuple(graph), tuple(values)


def _renamed(reads: Iterable[Read], names: Mapping[int, int]) -> tuple[Read, ...]:
    return tuple(read._replace(value=names[read.value]) for read in reads)
