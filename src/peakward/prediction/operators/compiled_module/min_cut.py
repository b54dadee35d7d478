"""The least cut of a network: by Dinic's algorithm, whose levels are few where paths are short."""

from collections import deque

INFINITE = 1 << 80


class Network:
    """Vertices by number, and edges with whole capacities."""

    def __init__(self, n_vertices: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(n_vertices)]
        """The edges out of each vertex; each one's reverse is the number beside it."""
        self._to: list[int] = []
        self._left: list[int] = []

    def edge(self, start: int, end: int, capacity: int | None) -> None:
        """An edge; None has no limit."""
        for a, b, left in (
            (start, end, INFINITE if capacity is None else capacity),
            (end, start, 0),
        ):
            self._edges[a].append(len(self._to))
            self._to.append(b)
            self._left.append(left)

    def source_side(self, source: int, sink: int) -> set[int]:
        """The vertices that are reached from the source once as much flows to the sink as can."""
        while True:
            levels = self._levels(source)
            if sink not in levels:
                return set(levels)
            nexts = [0] * len(self._edges)
            while self._push(source, sink, levels, nexts):
                pass

    def _levels(self, source: int) -> dict[int, int]:
        levels, waiting = {source: 0}, deque([source])
        while waiting:
            at = waiting.popleft()
            for edge in self._edges[at]:
                if self._left[edge] and self._to[edge] not in levels:
                    levels[self._to[edge]] = levels[at] + 1
                    waiting.append(self._to[edge])
        return levels

    def _push(self, source: int, sink: int, levels: dict[int, int], nexts: list[int]) -> bool:
        """Sends what one more shortest path takes; False where there is none."""
        path: list[int] = []
        at = source
        while at != sink:
            edges = self._edges[at]
            while nexts[at] < len(edges) and not self._leads_on(edges[nexts[at]], at, levels):
                nexts[at] += 1
            if nexts[at] < len(edges):
                path.append(edges[nexts[at]])
                at = self._to[path[-1]]
            elif path:
                at = self._to[path.pop() ^ 1]
                nexts[at] += 1
            else:
                return False
        least = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= least
            self._left[edge ^ 1] += least
        return True

    def _leads_on(self, edge: int, at: int, levels: dict[int, int]) -> bool:
        return self._left[edge] > 0 and levels.get(self._to[edge]) == levels[at] + 1
