"""The end of every report: where a study was made, and what its figures mean."""

from peakward.records.calibration import Calibration
from peakward.records.measurement import Environment
from peakward.records.study import Study
from peakward.report.document import Command, Fact, Facts, Items, Section
from peakward.report.format import format_cell, format_duration

MODEL_FLOPS = (
    "Model FLOPs count 2·m·n·k for every matmul that the maths needs. Causal attention counts as half of "
    "the full score matrix, a decode step as the positions attended to, and the head of prefill and "
    "decode only at the last position. Training is 3 × forward. Recomputation is never counted."
)
CONVENTIONS = (
    MODEL_FLOPS,
    "MFU is model FLOP/s over the datasheet's dense peak of the compute type.",
    "Ceiling share is model FLOP/s over the best matmul rate measured on this device in the same "
    "compute type.",
    "The floor of a phase is the longer of its FLOPs over the matmul rate and its compulsory bytes "
    "over the bandwidth; that of a step is the sum over its phases. Share of floor is floor over "
    "measured time.",
    "Arithmetic intensity is model FLOPs over compulsory bytes; a roof is the lower of bandwidth × "
    "intensity and the matmul rate.",
    "Times are medians of the steps, with a bootstrap 95% interval; where several processes ran, "
    "medians over the processes' medians.",
    "A lever's speed-up is base over candidate step time. Confirmed: a pair of both in each of several "
    "processes, with a 95% t-interval on the logarithm of the ratio. Screened: the ratio of two short "
    "measurements, with the widest interval that theirs allow. It can reject a lever, not confirm a gain.",
    "Numerics: exact is bitwise equality under determinism; reordered, an error against an fp64 "
    "oracle within twice the base's own; approximate, an error within the bound printed beside it. "
    "Errors are ‖x − oracle‖ / ‖oracle‖.",
    "On a GPU, peak memory is the allocator's maximum of allocated bytes; on a CPU, the growth of the "
    "process's resident memory. GiB is 2**30 bytes, GB/s 10**9 bytes a second.",
)


def conventions() -> Section:
    """The definitions of the figures, as a folded section."""
    return Section(title="Conventions", blocks=(Items(texts=CONVENTIONS),), folded=True)


def notes(study: Study) -> Section:
    """The study's notes, and the doubts about its ceilings."""
    texts = (*study.notes, *(ceiling_doubts(study.calibration) if study.calibration else ()))
    return Section(title="Notes", blocks=(Items(texts=texts),) if texts else ())


def ceiling_doubts(calibration: Calibration) -> tuple[str, ...]:
    """A sentence for each doubt of a calibration."""
    return tuple(
        f"When the ceilings were measured, {doubt}: they may be too low. "
        "`peakward devices calibrate` measures them again."
        for doubt in calibration.doubts
    )


def environment(study: Study) -> Section:
    """Device, software and time of the study, as a folded section."""
    return Section(
        title="Environment", blocks=(Facts(facts=environment_facts(study)),), folded=True
    )


def reproduction(study: Study) -> Section:
    """The command that reproduces the study."""
    return Section(title="Reproduce", blocks=(Command(text=study.command),))


def environment_facts(study: Study) -> tuple[Fact, ...]:
    """All known facts about place and time."""
    where = study.environment
    facts = {
        "device": device(where),
        "device UUID": where.device_uuid,
        "compute capability": where.compute_capability,
        "cores": str(where.n_cores),
        "driver": where.driver,
        "CUDA": where.cuda,
        "torch": where.torch,
        "triton": where.triton,
        "Python": where.python,
        "system": where.system,
        "Peakward": where.peakward,
        "started": study.started_at,
        "took": format_duration(study.wall_s),
        "study": study.id,
    }
    return tuple(Fact(name=name, value=value) for name, value in facts.items() if value is not None)


def device(where: Environment) -> str:
    """Name and memory: "NVIDIA H200, 140 GiB"."""
    return f"{where.device_name}, {format_cell(where.device_memory_bytes, 'bytes')}"


def software(where: Environment) -> str:
    """The versions that a figure depends on most: "torch 2.11.0+cu130, CUDA 13.0, driver 580.65"."""
    parts = {
        "torch": where.torch,
        "triton": where.triton,
        "CUDA": where.cuda,
        "driver": where.driver,
        "Python": where.python,
    }
    return ", ".join(f"{name} {version}" for name, version in parts.items() if version is not None)
