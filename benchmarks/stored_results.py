"""The results under results/, found through their index: by name, or by kind and device.

    index().of("study")                              every stored study, the oldest first
    index().newest("accuracy")["h200-141"].read()    the JSON of a device's latest accuracy

results/index.toml says what an entry's fields mean.
"""

import tomllib
from pathlib import Path
from typing import Literal

import msgspec

FOLDER = Path(__file__).parents[1] / "results"
Kind = Literal[
    "calibration",
    "run",
    "bench",
    "study",
    "accuracy",
    "peak-memory",
    "planted-faults",
    "kernel-speed",
    "kernel-sweep",
    "kernel-trials",
    "trial-steps",
    "against-transformers",
    "against-by-hand",
    "live-script",
    "module-prediction",
    "decode-speed",
    "own-cost",
    "parallel",
    "loss-curves",
]
STUDIES: tuple[Kind, ...] = ("run", "bench", "study")
"""Kinds whose JSON is a `Study`."""


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of the index."""

    name: str
    kind: Kind
    device: str
    subject: str
    protocol: str
    commit: str
    files: tuple[str, ...]
    formerly: str | None = None
    supersedes: tuple[str, ...] = ()
    folder: Path = FOLDER
    """Where its files lie; no entry says it."""

    def path(self, ending: str = "json") -> Path:
        """One of its files."""
        return self.folder / f"{self.name}.{ending}"

    def read(self) -> bytes:
        """Its JSON."""
        return self.path().read_bytes()


class Index(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All results of a folder, within a kind the oldest first."""

    protocols: dict[str, str]
    results: tuple[Result, ...]

    def __getitem__(self, name: str) -> Result:
        """The result of that name."""
        for each in self.results:
            if each.name == name:
                return each
        raise KeyError(f"expected a name of results/index.toml, got {name}")

    def of(
        self, *kinds: Kind, device: str | None = None, subject: str | None = None
    ) -> list[Result]:
        """Those of some kinds; of one device and one subject where these are given."""
        return [
            each
            for each in self.results
            if each.kind in kinds
            and device in (None, each.device)
            and subject in (None, each.subject)
        ]

    def newest(self, kind: Kind) -> dict[str, Result]:
        """The latest of a kind, by device."""
        return {each.device: each for each in self.of(kind)}


def index(folder: Path = FOLDER) -> Index:
    """The index of a folder of results."""
    found = msgspec.convert(tomllib.loads((folder / "index.toml").read_text()), Index)
    here = (msgspec.structs.replace(each, folder=folder) for each in found.results)
    return msgspec.structs.replace(found, results=tuple(here))
