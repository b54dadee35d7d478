"""The pieces of `layout`."""

from collections.abc import Iterator
from itertools import product

from peakward.records.case import DeviceType, MicroCase, MicroPrecision, MicroSubject
from peakward.studies.pieces import planned
from peakward.studies.readings import Planned
from peakward.studies.scope import ScopeName
from peakward.studies.setting import Setting

TITLES: dict[MicroSubject, str] = {
    "matmul-operands": "Operands of a product",
    "addition": "Operands of an addition",
    "heads": "Heads first, or permuted",
    "projection": "Queries, keys and values: separate or packed",
}
PIECES: dict[MicroSubject, tuple[str, ...]] = {
    "matmul-operands": (
        "NN",
        "NT",
        "TN",
        "TT",
        "strided rows",
        "strided columns",
        "strided columns (copied)",
        "expanded",
    ),
    "addition": (
        "contiguous",
        "both transposed",
        "one transposed",
        "one transposed (copied)",
        "strided rows",
        "strided columns",
        "an expanded row",
        "an expanded column",
    ),
    "heads": (
        "scores of heads first",
        "scores of permuted heads",
        "scores of permuted heads (copied)",
        "attention of heads first",
        "attention of permuted heads",
        "attention of permuted heads (copied)",
    ),
    "projection": ("separate", "packed", "packed (copied)"),
    "view": tuple(
        f"{change} of {kind}"
        for change in ("view", "reshape", "contiguous", "transpose", "expand", "select", "chunk")
        for kind in ("contiguous", "transposed")
    ),
}
BASES: dict[MicroSubject, tuple[str, ...]] = {
    "matmul-operands": ("NN",),
    "addition": ("contiguous",),
    "heads": ("scores of heads first", "attention of heads first"),
    "projection": ("separate",),
}
"""What the others are held against: the same work on what lies row after row, separately."""
VIEWED = (512, 768)
Sizes = dict[MicroSubject, tuple[tuple[int, ...], ...]]
SMALL: Sizes = {
    "matmul-operands": ((768,),),
    "addition": ((2048,),),
    "heads": ((2, 8, 256, 64),),
    "projection": ((512, 768),),
}
FULL_ON_CPU: Sizes = {
    "matmul-operands": ((256,), (768,), (1536,)),
    "addition": ((512,), (2048,), (4096,)),
    "heads": ((2, 8, 256, 64), (4, 12, 512, 64)),
    "projection": ((128, 768), (512, 768), (1024, 1600)),
}
CORNERS: Sizes = {
    "matmul-operands": ((1024,), (8192,)),
    "addition": ((1024,), (16_384,)),
    "heads": ((4, 12, 1024, 64), (4, 32, 2048, 80)),
    "projection": ((512, 768), (8192, 2560)),
}
FULL: Sizes = {
    "matmul-operands": ((1024,), (2048,), (4096,), (8192,)),
    "addition": ((1024,), (4096,), (8192,), (16_384,)),
    "heads": ((4, 12, 512, 64), (4, 12, 1024, 64), (4, 25, 1024, 64), (4, 32, 2048, 80)),
    "projection": ((4, 2560), (512, 768), (2048, 1600), (8192, 2560)),
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


def plan(setting: Setting) -> tuple[Planned, ...]:
    """Subject × sizes × precision × layout, timed; then the views, each once and untimed."""
    return (*planned(setting, _timed(setting)), *_views(setting))


def _timed(setting: Setting) -> Iterator[MicroCase]:
    for subject, grid in GRIDS[setting.device, setting.scope.name].items():
        for sizes, precision, piece in product(grid, PRECISIONS[setting.device], PIECES[subject]):
            yield MicroCase(
                subject=subject,
                piece=piece,
                sizes=sizes,
                precision=precision,
                device=setting.device,
            )


def _views(setting: Setting) -> Iterator[Planned]:
    for piece in PIECES["view"]:
        case = MicroCase(subject="view", piece=piece, sizes=VIEWED, device=setting.device)
        yield case, setting.protocol(warmup_steps=0, min_steps=1, max_steps=1)
