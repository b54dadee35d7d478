"""Study `fusion`: what separate calls cost softmax, RMSNorm and cross-entropy, and what fusing them gains."""

from collections.abc import Callable, Iterator

from peakward.records.case import MicroSubject
from peakward.records.study import Column, Conclusion, Table
from peakward.studies import pieces
from peakward.studies.claims import Sentence, compared, known, most, not_timed
from peakward.studies.engine import Study, View
from peakward.studies.pieces import Grids, Piece, PieceRow, Sizes, place, sizes, subject, work
from peakward.studies.readings import ratio
from peakward.studies.setting import Setting
from peakward.studies.values import STATUS, TIME, VERDICT, Value, bars, label, table, text

COMPILED = "compiled"
OWN = "peakward"
ONLINE_KERNEL = "online, one kernel"
PIECES: dict[MicroSubject, tuple[str, ...]] = {
    "softmax": ("three passes", "online", ONLINE_KERNEL, "torch", COMPILED, OWN),
    "rms-norm": ("call by call", "torch", COMPILED, OWN),
    "cross-entropy": ("call by call", "torch", COMPILED, OWN),
}
"""The pieces of each subject, the separate calls first."""
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
GRIDS: Grids = {
    ("cpu", "small"): SMALL,
    ("cpu", "corners"): FULL_ON_CPU,
    ("cpu", "full"): FULL_ON_CPU,
    ("cuda", "small"): SMALL,
    ("cuda", "corners"): CORNERS,
    ("cuda", "full"): FULL,
}
LAUNCH_S = 20e-6
"""A call from Python to its kernel took 5 to 20 µs on the hosts of our GPUs."""


def points(setting: Setting) -> tuple[Piece, ...]:
    """Every way to compute the same, but for what cannot run here."""
    left_out = {piece for piece, _, _ in absences(setting)}
    runnable = {
        name: [each for each in named if each not in left_out] for name, named in PIECES.items()
    }
    return pieces.grid(setting, GRIDS, runnable)


def absences(setting: Setting) -> tuple[tuple[str, str, str], ...]:
    """The pieces that are left out on this machine: their name, their subjects, the reason."""
    found, subjects = [], ", ".join(PIECES)
    if setting.device == "cpu":
        reason = "Peakward's kernels are written in Triton, which needs a GPU"
        found.append((OWN, subjects, reason))
        reason += "; Inductor's C++ has loops of its own for maximum, sum and quotient"
        found.append((ONLINE_KERNEL, "softmax", reason))
    if not setting.has_compiler:
        found.append((COMPILED, subjects, "torch.compile found no C++ compiler here"))
    return tuple(found)


def left_out(view: View[Piece]) -> Iterator[Table]:
    """Yields a table of what cannot run here, with the reason."""
    columns = (Column(name="piece", unit="name"), Column(name="of"), Column(name="reason"))
    yield Table(title="Left out", columns=columns, rows=absences(view.setting))


def passes(row: PieceRow) -> float | None:
    """Bytes of operands over the bytes of the inputs."""
    return None if (done := work(row)) is None else ratio(done.moved_bytes, done.input_bytes)


def passes_at_copy(row: PieceRow) -> float | None:
    """Passes over the inputs that the copy bandwidth would have made in the piece's time: at most so many
    went over memory, if none faster than a copy."""
    done, of = work(row), row.calibration
    if of is None or done is None or row.median_s is None:
        return None
    return ratio(row.median_s * of.copy_bytes_per_s, done.input_bytes)


def copy_share(row: PieceRow) -> float | None:
    """The piece's share of the measured copy bandwidth."""
    of = row.calibration
    return None if of is None else ratio(pieces.bytes_per_s(row), of.copy_bytes_per_s)


BANDWIDTH = Value("bandwidth", "bytes_per_s", pieces.bytes_per_s)
VALUES = (
    label("rows × columns", sizes),
    pieces.PRECISION,
    label("piece", lambda row: row.name),
    STATUS,
    Value("operands' passes", "count", passes),
    Value("operands' bytes", "bytes", pieces.moved_bytes),
    text("counted by", lambda row: None if (done := work(row)) is None else done.counted_by),
    Value("passes at the copy's bandwidth", "count", passes_at_copy),
    TIME,
    BANDWIDTH,
    Value("share of the copy's", "share", copy_share),
    pieces.DIFFERENCE,
    VERDICT,
)


def largest(view: View[Piece]) -> Iterator[tuple[PieceRow, ...]]:
    """The group of each subject and precision with the most elements that was run at all."""
    ran = [group for group in pieces.groups(view.rows) if any(map(work, group))]
    found = {}
    for group in sorted(ran, key=lambda of: of[0].point.case.sizes[0] * of[0].point.case.sizes[1]):
        found[subject(group[0]), group[0].point.case.precision] = group
    return (group for group in ran if group in found.values())


def passes_claim(view: View[Piece]) -> Iterator[Conclusion]:
    """How often each way goes over memory at the largest inputs of each subject: what its calls have for
    operands, and what its time leaves room for."""
    for group in largest(view):
        told, at_copy = Sentence(), known(group, passes_at_copy)
        counted = [(found, row) for found, row in known(group, passes) if found]
        if not counted:
            continue
        text = (
            f"Passes over the inputs of {place(group[0])}, each operand of a call once: "
            + told.by_name("operands' passes", counted, "count")
        )
        if at_copy:
            text += "; inferred from time and copy bandwidth, at most: "
            text += told.by_name("passes at the copy bandwidth", at_copy, "count", view.calibration)
        yield from told.end(f"{text}.")


def times(view: View[Piece]) -> Iterator[Conclusion]:
    """Separate calls against the fastest way, at every size; the online softmax against three passes, as a
    loop of calls, each of which goes over memory again, and in the one kernel that it is meant for."""
    for group in pieces.groups(view.rows):
        where = place(group[0])
        for online in ("online", ONLINE_KERNEL):
            passes = pieces.named(group, "three passes")
            yield from compared(where, pieces.named(group, online), passes)
        timed = [row for row in group if row.time]
        if len(timed) > 1 and timed[0].point.case.piece == PIECES[subject(group[0])][0]:
            fastest = min(timed[1:], key=lambda row: row.median_s or 0.0)
            yield from compared(where, timed[0], fastest)


def shares(view: View[Piece]) -> Iterator[Conclusion]:
    """The best share of the bandwidth that each subject reaches at its largest inputs."""
    for group in largest(view):
        if found := known(group, copy_share):
            share, best = most(found)
            told, absent = Sentence(), not_timed(group)
            number = told(
                "share of the copy bandwidth", share, "share", best.measurement, best.calibration
            )
            yield from told.end(
                f"Nearest to the copy bandwidth at {place(best)} comes{' of those timed' if absent else ''} "
                f"{best.name}, with {number} of it{absent}."
            )


def equality(view: View[Piece]) -> Iterator[Conclusion]:
    """The differences from fp64 in each precision."""
    yield from pieces.equality(view, lambda row: row.point.case.precision)


def notes(view: View[Piece]) -> Iterator[str]:
    """How passes, shares and times are to be read."""
    yield (
        "Passes are bytes over the bytes of the inputs, told in two ways. Operands' passes are counted: "
        "of separate calls each operand of each operator that torch dispatched once, of compiled code "
        "each operand of each kernel that Inductor made once. A kernel that reads an operand twice has "
        "it once there. Passes at the copy's bandwidth are inferred: the time of the piece, times this "
        "device's copy bandwidth. No more than these went over memory, unless reading alone is faster "
        "than copying; fewer did where a kernel is slower than memory or waits for its launch."
    )
    yield (
        "Online by torch calls shows the algorithm, not its use: a loop over blocks of columns, whose "
        "every step is a call, so that each block moves several times. Online in one kernel reads rows "
        "twice, once for maximum and sum and once for the quotient, and writes them once: three passes, "
        "less where a cache still holds the row. Peakward's own softmax holds a row in registers "
        "where it fits, and takes wider ones that way."
    )
    if view.on_gpu and (small := _names(row for row in view.rows if _is_launch(row))):
        yield (
            f"The least bytes of {small} take under 20 µs: a host launches a kernel in 5 to 20 µs there, and "
            "the more calls a piece has, the more of its time is the host's, which differs from host to host."
        )
    yield (
        "Bandwidth is of the least bytes, every input read once and the result written once, and "
        "its share is of this device's measured copy bandwidth. So it is lost by bytes moved "
        "twice as by kernels that move them slowly."
    )
    yield (
        "Every step makes its results anew, as a model does: on a CPU the system hands out the pages "
        "of large ones at each call, which is part of their time."
    )
    yield pieces.FP64_NOTE
    if above := _names(row for row in view.rows if (copy_share(row) or 0.0) > 1):
        yield (
            f"A share over 100% ({above}): the ceiling is that of one large copy. What a cache holds is "
            "read and written faster, and reading alone may be faster than copying."
        )


def _is_launch(row: PieceRow) -> bool:
    """Whether its inputs are so small that a GPU's time of them is the host's launches too."""
    done, of = work(row), row.calibration
    if done is None or of is None:
        return False
    return done.least_bytes / of.copy_bytes_per_s < LAUNCH_S


def _names(rows: Iterator[PieceRow]) -> str:
    return ", ".join(dict.fromkeys(f"{subject(row)} {sizes(row)}" for row in rows))


def _of(wanted: MicroSubject) -> Callable[[View[Piece]], Iterator[PieceRow]]:
    return lambda view: (row for row in view.rows if subject(row) == wanted)


STUDY = Study(
    title="What does fusing kernels that memory binds gain?",
    points=points,
    needs_ceilings=True,
    tables=(*(table(name, VALUES, _of(name)) for name in PIECES), left_out),
    plots=tuple(
        bars(
            f"Bandwidth of {name}",
            "piece",
            Value("least bytes a second", "bytes_per_s", pieces.bytes_per_s),
            lambda row: f"{sizes(row)}, {row.point.case.precision}",
            _of(name),
        )
        for name in PIECES
    ),
    claims=(passes_claim, times, shares, equality),
    notes=notes,
)
