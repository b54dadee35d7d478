"""The loader of a live step: as it was given, or made anew with workers, and with copies made ahead."""

from peakward.levers.axis import Axis, Code, CodeHint, ComputeCapability
from peakward.records.case import Configuration, ConfiguredCase
from peakward.records.lever import Lever

AS_GIVEN = "as-given"
N_WORKERS = (8, 4, 2)
"""The most first: nothing is predicted of them, and too few leave the step waiting."""
OF_A_STEP = "needs a live step with a loader: a case's workload says how it is fed"


def chosen(configuration: Configuration) -> str:
    """The value of a configuration."""
    return dict(configuration.more).get("loader", AS_GIVEN)


def n_workers(value: str) -> int:
    """The number of worker processes in a value."""
    return int(value.partition(":")[2])


def is_ahead(value: str) -> bool:
    """Whether batches are copied to the GPU ahead."""
    return value.startswith("ahead:")


def _obstacle(case: ConfiguredCase, _capability: ComputeCapability | None) -> str | None:
    return f"loader {chosen(case.configuration)} {OF_A_STEP}"


def _lever(value: str) -> Lever:
    n = n_workers(value)
    copied = ", and copied to the GPU while the step before runs" if is_ahead(value) else ""
    return Lever(
        name=value.replace(":", "-"),
        summary=f"batches made by {n} worker processes{copied}",
        sets=(("loader", value),),
        numerics="exact",
        device_types=("cuda",) if is_ahead(value) else ("cpu", "cuda"),
    )


def _hint(value: str) -> CodeHint:
    return CodeHint(
        module=OF_A_STEP,
        step=f"is the loader's: give it as loader=, or make it with num_workers={n_workers(value)}, "
        "persistent_workers=True and pin_memory=True",
        handle="loader",
    )


def _code(value: str) -> Code:
    settings = f"n_workers={n_workers(value)}, pinned=torch.cuda.is_available()"
    settings += ", ahead=True" if is_ahead(value) else ""
    return Code(
        imports=("from peakward.lab.data.given_loader import rebuilt",),
        once=(f"loader = rebuilt(loader, {settings})",),
    )


_VALUES = tuple(f"{way}:{n}" for n in N_WORKERS for way in ("ahead", "workers"))
AXIS = Axis(
    name="loader",
    default=AS_GIVEN,
    help="Of a live step: as-given, or made anew, as workers:4 or ahead:4.",
    around_call=tuple(map(_lever, _VALUES)),
    obstacle=_obstacle,
    hints={value: _hint(value) for value in _VALUES},
    code={value: _code(value) for value in _VALUES},
    called="loader",
    leaves_alone=("forward", "backward", "optimizer"),
)
NAMES: tuple[str, ...] = tuple(each.name for each in AXIS.around_call)
