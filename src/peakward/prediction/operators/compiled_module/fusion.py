"""The kernels that Inductor makes of one graph of loops and calls.

After `lowering.py`, `graph.py` and `scheduler.py` of torch._inductor (2.11). A loop over elements is written
into whatever loops read it, unless a call reads it, the graph gives it back, or several loops read it and it
reads much; what is left is fused, the pair that spares most memory traffic first, where both go over the same
elements or along the same rows and none of them waits for the other by way of a third. A kernel reads each
value once and writes what is read outside it. Sums across rows read what is in memory.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from peakward.prediction.operators.compiled.reductions import (
    MIXED_PART_ROWS,
    PART_ROWS,
    mixes,
    sums_in_parts,
)
from peakward.prediction.operators.compiled_module.loops import INTO_BUFFERS, Loop, Read
from peakward.prediction.operators.compiled_module.parts import Value
from peakward.prediction.operators.tape import FLOAT, FusedKind, tensor
from peakward.records.op_graph import ITEM_BYTES, Operand

MANY_READS = 4
"""A loop that reads more values than these is written to memory where several loops read it
(`config.realize_reads_threshold`)."""
MOST_READS = 8
"""A loop that reads more is written to memory in any case (`config.realize_acc_reads_threshold`)."""
MANY_OPERATORS = 30
"""As `MOST_READS`, of a loop of so many operators (`config.realize_opcount_threshold`)."""
BY_PIECE = 8
"""Operators of a concatenation's piece: two bounds, a comparison with each, a load, a zero, two choices."""
MOVES = frozenset(
    {
        *("cat", "constant_pad_nd", "flip", "repeat", "roll", "stack"),
        *("select_backward", "slice_backward", "slice_scatter"),
    }
)
"""Loops that read other places than they write."""
LARGEST = 64
"""Loops in one kernel (`config.max_fusion_size`)."""
NEAR = 64
"""Loops farther apart than this are fused only where one reads the other (`scheduler.py`,
`are_long_distant_nodes`)."""


class Kernel(NamedTuple):
    """One launch: a kernel of Inductor's, or a call."""

    kind: FusedKind | None
    """None of a call."""
    operator: int
    """The index of the operator that it is, or of the first that it is made of."""
    names: tuple[str, ...]
    """The operators that are fused in it."""
    reads: tuple[Read, ...]
    writes: tuple[int, ...]
    made: tuple[Operand, ...]
    is_product: bool = False
    """Whether it writes to a buffer that it is given."""


def kernels(
    graph: Sequence[Loop], values: list[Value], results: Collection[int]
) -> tuple[Kernel, ...]:
    """The kernels of a graph in the order in which they run.

    Args:
        values: those of the graph; partial sums are added to them.
        results: values that the graph gives back.
    """
    return _Scheduler(_lowered(graph, results), values, results).kernels()


class _Node(NamedTuple):
    """A loop whose result is in memory, with all that is written into it."""

    loop: Loop
    reads: dict[tuple[int, int, int], Read]
    """By value, first element and bytes: another part of the same value is read beside."""
    names: frozenset[str]
    n_operators: int
    n_reads: int
    """As Inductor counts them: the same tensor read at another place counts again."""
    moves: bool
    """Whether something in it reads other places than it writes."""


def _key(read: Read) -> tuple[int, int, int]:
    return read.value, read.offset, read.n_bytes


def _lowered(graph: Sequence[Loop], results: Collection[int]) -> list[_Node]:
    """The loops that stay, less what nobody reads."""
    live = _live(graph, results)
    readers: dict[int, list[Loop]] = {}
    for loop in live:
        for each in dict.fromkeys(read.value for read in loop.reads):
            readers.setdefault(each, []).append(loop)
    inlined: dict[int, _Node] = {}
    found = []
    for loop in live:
        node = _node(loop, inlined)
        (*_, value) = loop.writes or (-1,)
        if value not in results and _stays_inside(node, readers.get(value, ())):
            inlined[value] = node
        else:
            found.append(node)
    return found


def _live(graph: Sequence[Loop], results: Collection[int]) -> list[Loop]:
    wanted, found = set(results), []
    for loop in reversed(graph):
        if not loop.writes or not wanted.isdisjoint(loop.writes):
            found.append(loop)
            wanted.update(read.value for read in loop.reads)
    return found[::-1]


def _stays_inside(node: _Node, readers: Sequence[Loop]) -> bool:
    if node.loop.kind != "pointwise" or any(_needs_memory(node.loop, each) for each in readers):
        return False
    if node.n_reads > MOST_READS or node.n_operators > MANY_OPERATORS:
        return False
    return not (len(readers) > 1 and node.n_reads > MANY_READS)


def _needs_memory(made: Loop, reader: Loop) -> bool:
    """Whether the reader wants the result in memory: a call, and a loop that adds to places of it."""
    adds_to_it = reader.kind == "scatter" and reader.reads[-1].value in made.writes
    return reader.kind == "call" or adds_to_it


def _node(loop: Loop, inlined: dict[int, _Node]) -> _Node:
    reads: dict[tuple[int, int, int], Read] = {}
    apart, beside = set[tuple[int, int, int]](), 0
    inner = [inlined[read.value] for read in loop.reads if read.value in inlined]
    n_pieces = len(loop.reads) if loop.name == "cat" else 0
    for read in loop.reads:
        if read.value not in inlined:
            reads[_key(read)] = read
            apart.add(_key(read))
            continue
        within, looked_at = inlined[read.value], read.n_bytes // ITEM_BYTES[read.operand.dtype]
        for each in within.reads.values():
            part, n_bytes = each, max(1, looked_at) * ITEM_BYTES[each.operand.dtype]
            if n_bytes < each.n_bytes:
                part = each._replace(n_bytes=n_bytes, offset=each.offset + read.offset)
            reads.setdefault(_key(part), part)
            if not within.moves:
                apart.add(_key(part))
        beside += within.n_reads if within.moves else 0
    return _Node(
        loop,
        reads,
        frozenset({f"aten.{loop.name}"}).union(*(each.names for each in inner)),
        1 + BY_PIECE * n_pieces + sum(each.n_operators for each in inner),
        len(apart) + beside,
        loop.name in MOVES or any(each.moves for each in inner),
    )


class _Group:
    """Nodes of one kernel."""

    def __init__(self, i: int, node: _Node) -> None:
        self.nodes, self.first = [node], i
        self.mask = 1 << i
        self.before = self.after = 0
        """Nodes that must have run, and that must wait for it, as bits."""

    @property
    def is_call(self) -> bool:
        return self.nodes[0].loop.kind in ("call", "scatter")


class _Scheduler:
    """Fuses nodes."""

    def __init__(
        self, nodes: Sequence[_Node], values: list[Value], results: Collection[int]
    ) -> None:
        self._nodes, self._values, self._results = nodes, values, results
        self._groups = [_Group(i, node) for i, node in enumerate(nodes)]
        self._of = list(self._groups)
        """The group of each node."""
        self._maker = {value: i for i, node in enumerate(nodes) for value in node.loop.writes}
        self._readers: dict[int, list[int]] = {}
        for i, node in enumerate(nodes):
            for each in dict.fromkeys(read.value for read in node.reads.values()):
                self._readers.setdefault(each, []).append(i)
        self._order()

    def kernels(self) -> tuple[Kernel, ...]:
        self._fuse()
        return tuple(kernel for group in self._sorted() for kernel in self._told(group))

    def _order(self) -> None:
        for i, group in enumerate(self._groups):
            for read in self._nodes[i].reads.values():
                maker = self._maker.get(read.value)
                if maker is not None:
                    group.before |= self._groups[maker].before | 1 << maker
        for i in range(len(self._groups) - 1, -1, -1):
            group = self._groups[i]
            for value in self._nodes[i].loop.writes:
                for reader in self._readers.get(value, ()):
                    group.after |= self._groups[reader].after | 1 << reader

    def _fuse(self) -> None:
        """The dearest pairs first, again until nothing fuses."""
        pairs = self._pairs()
        while True:
            waiting, pairs, fused = pairs, [], False
            for score, i, j in waiting:
                one, other = self._of[i], self._of[j]
                if one is other:
                    continue
                if self._may_fuse(one, other):
                    self._merge(one, other)
                    fused = True
                else:
                    pairs.append((score, i, j))
            if not fused:
                return

    def _pairs(self) -> list[tuple[int, int, int]]:
        """Nodes that share a value, by the bytes that one kernel spares of it, most first."""
        scores: dict[tuple[int, int], int] = {}
        for value in dict.fromkeys((*self._maker, *self._readers)):
            touched = [*self._readers.get(value, ())]
            if value in self._maker:
                touched.insert(0, self._maker[value])
            loops = [i for i in touched if not self._groups[i].is_call]
            size = self._values[value].operand.n_bytes
            for at, i in enumerate(loops):
                for j in loops[at + 1 :]:
                    made_here = i == self._maker.get(value)
                    if not made_here and j - i > NEAR:
                        break
                    if self._turns(value, j) if made_here else self._cross(value, i, j):
                        continue
                    pair = (min(i, j), max(i, j))
                    scores[pair] = scores.get(pair, 0) + size
        # `MixOrderReduction.get_fusion_score` counts elements in the place of bytes.
        for i, j in scores:
            across = [x for x in (self._nodes[i].loop, self._nodes[j].loop) if x.kind == "outer"]
            if len(across) == 1:
                scores[i, j] = across[0].n * across[0].r
        found = [(score, i, j) for (i, j), score in scores.items()]
        return sorted(found, key=lambda each: (-each[0], each[2] - each[1], each[1]))

    def _turns(self, value: int, reader: int) -> bool:
        """Whether the reader goes through the value in another order than it is written in."""
        shape = self._values[value].operand.shape
        return any(
            read.value == value
            and read.operand.shape != shape
            and sorted(read.operand.shape) == sorted(shape)
            for read in self._nodes[reader].reads.values()
        )

    def _cross(self, value: int, one: int, other: int) -> bool:
        """Whether one pads a matrix of the value and the other its transpose."""
        first, second = (
            {read.operand.shape for read in self._nodes[i].reads.values() if read.value == value}
            for i in (one, other)
        )
        return first != second and any(len(x) == 2 and x[::-1] in second for x in first)

    def _may_fuse(self, one: _Group, other: _Group) -> bool:
        if one.is_call or other.is_call or len(one.nodes) + len(other.nodes) > LARGEST:
            return False
        between = (one.after & other.before) | (other.after & one.before)
        if between & ~(one.mask | other.mask):
            return False
        # Sums along rows and across them are mixed where neither is made of the other.
        apart = not (one.before & other.mask or other.before & one.mask)
        return all(
            self._alike(a, b) or (apart and self._mixes(a, b))
            for a in _leading(one)
            for b in _leading(other)
        )

    def _alike(self, a: Loop, b: Loop) -> bool:
        """Whether both go over the same elements, or along the same rows."""
        if a.r > 1 and b.r > 1:
            return (a.kind, a.n, a.r) == (b.kind, b.n, b.r)
        if a.r == b.r == 1:
            return a.n == b.n
        reduction, elements = (a, b) if a.r > 1 else (b, a)
        if reduction.kind == "outer":
            reads_it = any(each.value in reduction.writes for each in elements.reads)
            return reads_it and elements.n == reduction.n
        return elements.n in (reduction.n, reduction.n * reduction.r)

    def _mixes(self, a: Loop, b: Loop) -> bool:
        """Whether one kernel takes sums along rows and across them, which pays where the rows are many."""
        inner, outer = (a, b) if b.kind == "outer" else (b, a)
        if inner.kind != "inner" or outer.kind != "outer":
            return False
        return (inner.n, inner.r) == (outer.r, outer.n) and mixes(inner.n, inner.r)

    def _merge(self, one: _Group, other: _Group) -> None:
        first, second = sorted((one, other), key=lambda each: each.first)
        first.nodes += second.nodes
        first.mask |= second.mask
        first.before = (first.before | second.before) & ~first.mask
        first.after = (first.after | second.after) & ~first.mask
        self._groups.remove(second)
        for i, group in enumerate(self._of):
            if group is second:
                self._of[i] = first
        for group in self._groups:
            if group.mask & first.before:
                group.after |= first.after | first.mask
            elif group.mask & first.after:
                group.before |= first.before | first.mask

    def _sorted(self) -> list[_Group]:
        """Groups by their first node, each behind those that it waits for."""
        done: dict[int, _Group] = {}
        for group in sorted(self._groups, key=lambda each: each.first):
            stack = [group]
            while stack:
                at = stack[-1]
                waits = [each for each in self._makers(at) if id(each) not in done]
                if waits:
                    stack += reversed(waits)
                    continue
                stack.pop()
                done.setdefault(id(at), at)
        return list(done.values())

    def _makers(self, group: _Group) -> list[_Group]:
        read = (each.value for node in group.nodes for each in node.reads.values())
        found = {
            id(made): made
            for value in read
            if value in self._maker
            for made in [self._of[self._maker[value]]]
            if made is not group
        }
        return sorted(found.values(), key=lambda each: each.first)

    # What a group reads and writes.

    def _told(self, group: _Group) -> Iterable[Kernel]:
        node = group.nodes[0]
        if node.loop.kind == "call":
            yield self._kernel(None, group, node.loop.reads, node.loop.writes)
            return
        reads, writes = self._reads(group), self._writes(group)
        kinds = {each.loop.kind for each in group.nodes}
        if "outer" in kinds:
            yield from self._across(group, reads, writes, mixed="inner" in kinds)
        else:
            kind: FusedKind = "inner_reduction" if "inner" in kinds else "pointwise"
            yield self._kernel(kind, group, reads, writes)

    def _across(
        self, group: _Group, reads: Sequence[Read], writes: Sequence[int], *, mixed: bool
    ) -> Iterable[Kernel]:
        """Sums across rows: in parts of the rows first, and then of the parts, where that pays."""
        across = [each.loop for each in group.nodes if each.loop.kind == "outer"]
        n_rows, width = across[0].r, across[0].n
        if not mixed and not sums_in_parts(n_rows, width):
            yield self._kernel("outer_reduction", group, reads, writes)
            return
        rows = MIXED_PART_ROWS if mixed else PART_ROWS
        partial = tensor(FLOAT, -(-n_rows // rows), width)
        finished = {value for loop in across for value in loop.writes}
        later = self._behind(group, finished)
        parts = [self._new(partial) for _ in across]
        now = [each for each in writes if each not in finished | later]
        kind: FusedKind = "mixed_reduction" if mixed else "outer_reduction"
        yield self._kernel(kind, group, reads, (*now, *parts))
        for part, loop in zip(parts, across, strict=True):
            results = self._finishing(group, loop, writes, later)
            read = Read(part, partial, 0, partial.n_bytes)
            yield self._kernel("outer_reduction", group, (read,), results)

    def _behind(self, group: _Group, finished: set[int]) -> set[int]:
        """Results that the group makes of the finished sums, such as a cast."""
        found: set[int] = set()
        for node in group.nodes:
            if any(read.value in finished | found for read in node.reads.values()):
                found.update(node.loop.writes)
        return found

    def _finishing(
        self, group: _Group, loop: Loop, writes: Sequence[int], later: set[int]
    ) -> tuple[int, ...]:
        own = set(loop.writes)
        own |= self._behind(group, own) & later
        return tuple(each for each in writes if each in own)

    def _new(self, operand: Operand) -> int:
        self._values.append(Value(operand, operand.n_bytes, "made", leaves=False))
        return len(self._values) - 1

    def _reads(self, group: _Group) -> tuple[Read, ...]:
        """Each part of a value once, and no more of a value than there is."""
        made = {value for node in group.nodes for value in node.loop.writes}
        found: dict[tuple[int, int, int], Read] = {}
        for node in group.nodes:
            found.update({key: read for key, read in node.reads.items() if read.value not in made})
        left: dict[int, int] = {}
        kept = []
        for read in sorted(found.values(), key=lambda each: -each.n_bytes):
            room = left.setdefault(read.value, self._size(read))
            n_bytes = min(read.n_bytes, room)
            left[read.value] = room - n_bytes
            if n_bytes:
                kept.append(read._replace(n_bytes=n_bytes))
        return tuple(kept)

    def _size(self, read: Read) -> int:
        value = self._values[read.value]
        if value.origin != "made":
            return value.n_bytes
        made = value.operand
        return max(made.n_bytes, made.n_elements * ITEM_BYTES[made.dtype])

    def _writes(self, group: _Group) -> tuple[int, ...]:
        """Results that the graph gives back, or another kernel reads."""
        return tuple(
            value
            for node in group.nodes
            for value in node.loop.writes
            if value in self._results
            or any(self._of[i] is not group for i in self._readers.get(value, ()))
        )

    def _kernel(
        self, kind: FusedKind | None, group: _Group, reads: Sequence[Read], writes: Sequence[int]
    ) -> Kernel:
        names = sorted(frozenset().union(*(each.names for each in group.nodes)))
        made = tuple(self._values[each].operand for each in writes)
        first = group.nodes[0].loop
        told, into_buffer = tuple(names) if kind else (), first.name in INTO_BUFFERS
        return Kernel(kind, first.operator, told, tuple(reads), tuple(writes), made, into_buffer)


def _leading(group: _Group) -> list[Loop]:
    """Loops that tell what the group goes over: its reductions, or one over elements."""
    found = {(each.loop.kind, each.loop.n, each.loop.r): each.loop for each in group.nodes}
    reductions = [loop for loop in found.values() if loop.r > 1]
    return reductions or [group.nodes[0].loop]
