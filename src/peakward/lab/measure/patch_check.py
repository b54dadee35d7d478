"""Asks another process how a factory makes its module, and whether a patched one computes the same.

The process ends with its answer, because a user's files are imported in it twice: as they are and as they
would be. Imports no torch.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from peakward.records.case import CompileScope, Configuration, ModuleCase
from peakward.records.errors import PeakwardError
from peakward.records.lever import NumericsVerdict
from peakward.records.measurement import Protocol

PROCESS = (sys.executable, "-P", "-m", "peakward.lab.measure.patch_process")
"""-P: a file in the working directory does not hide a module of torch's."""
TIMEOUT_S = 600.0


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """The question: how the module is made, or whether patched files make the same."""

    case: ModuleCase
    """In the configuration that the patch is for."""
    base: Configuration
    """The configuration that patched files are measured in."""
    files: dict[str, bytes] = {}
    """Absolute paths with the content that they would have. Empty: how the module is made."""
    in_fp8: tuple[str, ...] | None = None
    """The linear layers that the patched files put in fp8, as the case then has too."""
    protocol: Protocol = Protocol()
    n_rounds: int = 0
    """How often both are timed in turn; 0: their numbers alone are compared."""


class Built(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The way in which a factory makes its module."""

    made: Literal["module", "tuple", "object"]
    blocks: str | None
    """An expression of `model` that gives its repeated blocks."""
    keeps_buffers: bool
    """Whether its buffers stay in fp32 under 16-bit parameters."""
    compiled: CompileScope | None
    """The part that it compiles."""
    in_bf16: bool
    """Whether its parameters come in bf16."""
    file: str
    """The absolute path of the file that the factory is written in."""
    name: str
    line: int
    """The name and the first line of its code."""
    modules: tuple[str, ...]
    """The absolute paths of the files that define the module's parts."""


class Compared(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The patched module beside the unpatched one in the best configuration."""

    numerics: NumericsVerdict
    best_s: tuple[float, ...] = ()
    """The median step of each round."""
    patched_s: tuple[float, ...] = ()


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The reason why there is no answer."""

    reason: str


def built(case: ModuleCase) -> Built:
    """Asks how the case's factory makes its module.

    Raises:
        PeakwardError: it has changed since the case was described, or it cannot be found or run.
    """
    found = _answer(Ask(case=case, base=case.configuration))
    assert isinstance(found, Built)
    return found


def compared(
    case: ModuleCase,
    base: Configuration,
    files: dict[Path, bytes],
    *,
    protocol: Protocol,
    n_rounds: int,
    in_fp8: tuple[str, ...] | None = None,
) -> Compared:
    """Compares files as they would be with those that are there: their numbers, and their times.

    Args:
        case: of the files as they are, in the best configuration.
        base: what the patched files are measured in.
        n_rounds: how often both are timed in turn.
        in_fp8: the layers that the files put in fp8, where that is the case's precision.

    Raises:
        PeakwardError: the patched files cannot be imported or run.
    """
    content = {str(path): text for path, text in files.items()}
    ask = Ask(
        case=case,
        base=base,
        files=content,
        in_fp8=in_fp8,
        protocol=protocol,
        n_rounds=n_rounds,
    )
    found = _answer(ask)
    assert isinstance(found, Compared)
    return found


def _answer(ask: Ask) -> Built | Compared:
    with tempfile.TemporaryDirectory(prefix="peakward-") as folder:
        # What a user's code prints is no answer.
        place = Path(folder) / "answer.json"
        try:
            ended = subprocess.run(
                (*PROCESS, str(place)),
                input=msgspec.json.encode(ask),
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
                env={**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            )
        except subprocess.TimeoutExpired:
            raise PeakwardError(
                f"expected the patched module to run within {TIMEOUT_S:.0f} s, got no answer"
            ) from None
        if not place.exists():
            last = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
            said = last[0] if last else f"exit code {ended.returncode}"
            raise PeakwardError(f"expected the patched module to run, got {said}")
        found = msgspec.json.decode(place.read_bytes(), type=Built | Compared | Refused)
    if isinstance(found, Refused):
        raise PeakwardError(found.reason)
    return found
