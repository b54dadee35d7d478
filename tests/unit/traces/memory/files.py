"""Snapshots as files, for the tests of this folder."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[3] / "data" / "snapshots"
REAL = ("train", "allstacks", "compiled", "expandable", "graph", "late", "oom")


def real(name: str) -> Path:
    """A recording of an H100."""
    return DATA / f"{name}.pickle.gz"


def stats(name: str) -> dict[str, int]:
    """torch.cuda.memory_stats of the process that dumped it."""
    found: dict[str, int] = json.loads((DATA / f"{name}.json").read_text())["stats"]
    return found


def plain(name: str) -> Any:
    """The recording as Python's own pickle reads it: the files of `DATA` are ours."""
    return pickle.loads(gzip.decompress(real(name).read_bytes()))


def written(folder: Path, value: Any, *, protocol: int = 4) -> Path:
    """A pickle of the value."""
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path
