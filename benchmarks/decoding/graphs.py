"""Times of work on a GPU, replayed from CUDA graphs and in turns, and the report that they go into."""

import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import torch


def graph_of(body: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Captures what `body` launches. It runs once before, so that all is compiled."""
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


def replay_s(graph: torch.cuda.CUDAGraph, n: int) -> float:
    """The seconds of a replay, as the mean of n behind one another."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(n):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / n / 1e3


def chain_s(start: Callable[[int], None], n: int) -> float:
    """The seconds of one of n kernels in a chain, by the fastest of 3 rounds. `start` takes its number."""

    def body() -> None:
        for each in range(n):
            start(each)

    graph = graph_of(body)
    replay_s(graph, 2)
    return min(replay_s(graph, 3) for _ in range(3)) / n


def copy_bytes_per_s() -> float:
    """The bandwidth of a copy of 1 GiB: the bytes that it reads and writes, by its fastest round."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    # Added, for a copy in a graph is not the fast kernel.
    graph = graph_of(lambda: torch.add(source, 0.0, out=target))
    replay_s(graph, 3)
    best = min(replay_s(graph, 5) for _ in range(5))
    return 2 * source.nbytes / best


def in_turns(arms: dict[str, Callable[[], Any]], turns: int = 6) -> dict[str, list[float]]:
    """The seconds of each arm in each turn. Every turn has the order of the one before reversed."""
    times: dict[str, list[float]] = {each: [] for each in arms}
    for turn in range(turns):
        for arm in list(arms) if turn % 2 else list(arms)[::-1]:
            times[arm].append(timed_s(arms[arm], 12))
    return times


def timed_s(start: Callable[[], Any], n: int) -> float:
    """The seconds of a call, as the mean of n behind one that is not timed."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start()
    begin.record()
    for _ in range(n):
        start()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / n / 1e3


class Report:
    """The items that were found so far. They are on disk after every one."""

    def __init__(self, path: Path) -> None:
        self.path, self.held, self.began = path, {"items": []}, monotonic()

    def add(self, **item: Any) -> None:
        """Adds an item with the seconds since the report began, and prints it."""
        item["at_s"] = round(monotonic() - self.began, 1)
        self.held["items"].append(item)
        self.path.write_text(json.dumps(self.held, indent=1))
        print(json.dumps(item), flush=True)


@contextmanager
def told(report: Report, what: str) -> Iterator[None]:
    """Reports a failure within as an item of its own, so that the others go on."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (told)
        traceback.print_exc()
        report.add(phase=what, error=f"{type(error).__name__}: {str(error)[-600:]}")
    torch.cuda.empty_cache()
