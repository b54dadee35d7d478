"""The pieces of `fusion`: every way to compute the same, over a few sizes."""

from collections.abc import Sequence

import msgspec

from peakward.records.case import DeviceType, MicroCase, MicroPrecision, MicroSubject
from peakward.studies.pieces import planned
from peakward.studies.readings import Planned
from peakward.studies.scope import ScopeName
from peakward.studies.setting import Setting

COMPILED = "compiled"
OWN = "peakward"
ONLINE_KERNEL = "online, one kernel"
PIECES: dict[MicroSubject, tuple[str, ...]] = {
    "softmax": ("three passes", "online", ONLINE_KERNEL, "torch", COMPILED, OWN),
    "rms-norm": ("call by call", "torch", COMPILED, OWN),
    "cross-entropy": ("call by call", "torch", COMPILED, OWN),
}
"""Of each subject, the separate calls first."""

Sizes = dict[MicroSubject, tuple[tuple[int, int], ...]]
SMALL: Sizes = {
    "softmax": ((256, 1024), (2048, 2048)),
    "rms-norm": ((256, 1024), (2048, 2048)),
    "cross-entropy": ((512, 10_000),),
}
"""For a CPU: 1 MiB, which a core's cache holds, and 16 to 20 MiB, which it does not. Of 32 MiB and
more glibc maps each result anew: 40 of the 52 ms of torch's softmax are then page faults (one core of
an EPYC, torch 2.13)."""
CORNERS: Sizes = {
    "softmax": ((4096, 1024), (16_384, 4096), (4096, 65_536)),
    "rms-norm": ((4096, 1024), (32_768, 4096)),
    "cross-entropy": ((4096, 10_000), (4096, 128_256)),
}
"""For a GPU: what its L2 may hold, and what it cannot. The largest takes 15 GiB with its oracle."""
FULL: Sizes = {
    "softmax": tuple((2**28 // n // 2, n) for n in (512, 1024, 4096, 8192, 16_384, 65_536))
    + CORNERS["softmax"],
    "rms-norm": tuple((2**27 // n, n) for n in (768, 1024, 2560, 8192)) + CORNERS["rms-norm"],
    "cross-entropy": (*CORNERS["cross-entropy"], (8192, 10_000), (8192, 32_000), (8192, 50_257)),
}
FULL_ON_CPU: Sizes = {
    "softmax": (*SMALL["softmax"], (1024, 1000), (8192, 4096), (512, 65_536)),
    "rms-norm": (*SMALL["rms-norm"], (4096, 768), (8192, 4096)),
    "cross-entropy": (*SMALL["cross-entropy"], (2048, 10_000), (512, 50_257)),
}
GRIDS: dict[tuple[DeviceType, ScopeName], Sizes] = {
    ("cpu", "small"): SMALL,
    ("cpu", "corners"): FULL_ON_CPU,
    ("cpu", "full"): FULL_ON_CPU,
    ("cuda", "small"): SMALL,
    ("cuda", "corners"): CORNERS,
    ("cuda", "full"): FULL,
}
PRECISIONS: dict[DeviceType, tuple[MicroPrecision, ...]] = {
    "cpu": ("fp32",),
    "cuda": ("fp32", "bf16"),
}


class Absence(msgspec.Struct, frozen=True, kw_only=True):
    """A piece that cannot run here."""

    piece: str
    subjects: Sequence[MicroSubject]
    reason: str


def plan(setting: Setting) -> tuple[Planned, ...]:
    """Subject × sizes × precision × piece, but for what cannot run here."""
    left_out = {each.piece for each in absences(setting)}
    cases = (
        MicroCase(
            subject=subject,
            piece=piece,
            sizes=sizes,
            precision=precision,
            device=setting.device,
        )
        for subject, grid in GRIDS[setting.device, setting.scope.name].items()
        for sizes in dict.fromkeys(grid)
        for precision in PRECISIONS[setting.device]
        for piece in PIECES[subject]
        if piece not in left_out
    )
    return tuple(planned(setting, cases))


def absences(setting: Setting) -> tuple[Absence, ...]:
    """Which pieces are left out on this machine, and why."""
    found = []
    if setting.device == "cpu":
        reason = "Peakward's kernels are written in Triton, which needs a GPU"
        found.append(Absence(piece=OWN, subjects=tuple(PIECES), reason=reason))
        reason += "; Inductor's C++ has loops of its own for maximum, sum and quotient"
        found.append(Absence(piece=ONLINE_KERNEL, subjects=("softmax",), reason=reason))
    if not setting.has_compiler:
        reason = "torch.compile found no C++ compiler here"
        found.append(Absence(piece=COMPILED, subjects=tuple(PIECES), reason=reason))
    return tuple(found)
