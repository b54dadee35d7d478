"""Remedies for unreliable step times, by the reason that was given for them."""

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
"""Parts of reasons (of `stats.validity` or `lab.measure`) with their remedies. The first match counts. A
steady rise of step times mostly means that the device grows warm. Stored records have "other work took"."""


def remedies(reasons: Iterable[str]) -> tuple[str, ...]:
    """The remedies of the reasons in their order, each once."""
    found = (
        next((remedy for part, remedy in REMEDIES if part in reason), None) for reason in reasons
    )
    return tuple(dict.fromkeys(each for each in found if each is not None))
