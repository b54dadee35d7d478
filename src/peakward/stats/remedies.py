"""What to do about step times that may not be believed, by the reason given for them."""

from collections.abc import Iterable

QUIET = "stop the other programs, or keep them off these cores, and run again"
FREE_GPU = "end the other programs on the GPU, or choose a free one, and run again"
COOL = "cool the device, raise its power limit or lock a lower clock, and run again"
LONGER = "time more steps, on a machine that does nothing else"

REMEDIES = (
    ("other programs used", QUIET),
    ("other work took", QUIET),
    ("on the GPU, holding", FREE_GPU),
    ("utilised by something else", FREE_GPU),
    ("held by something else", FREE_GPU),
    ("power cap", COOL),
    ("the device reported", COOL),
    ("SM clock", COOL),
    ("timed steps <", "time more steps, or a smaller case"),
    ("rose", COOL),
    ("fell", "warm up for longer, and run again"),
    ("no steady step time", "warm up for longer, and run again"),
    ("middle half", LONGER),
    ("slow outliers", LONGER),
    ("two modes", LONGER),
    ("in process", "measure in a fresh process, which runs nothing else"),
)
"""A part of a reason (of `stats.validity` or `lab.measure`) and its remedy; the first that fits counts.
A steady rise of step times is mostly a device that grows warm. "other work took" is how stored records
have it."""


def remedies(reasons: Iterable[str]) -> tuple[str, ...]:
    """What to do, each once, in the order of the reasons."""
    found = (
        next((remedy for part, remedy in REMEDIES if part in reason), None) for reason in reasons
    )
    return tuple(dict.fromkeys(each for each in found if each is not None))
