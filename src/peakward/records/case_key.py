"""When cases are the same: keys, by which stored results are found again, and the same work."""

import hashlib

import msgspec

from peakward.records.case import (
    AS_WRITTEN,
    Case,
    Configuration,
    LayoutCase,
    LeverCase,
    ModelCase,
    ModuleCase,
    StepCase,
)

_OLDEST = (
    "precision",
    "attention",
    "compile",
    "compile_scope",
    "cuda_graphs",
    "optimizer",
    "checkpointing",
)
SPELLED_OUT: dict[type, tuple[str, ...]] = {
    ModelCase: _OLDEST,
    ModuleCase: (*_OLDEST, "loss"),
    StepCase: (*_OLDEST, "loss"),
}
"""The settings that a key always holds, by the kind of case. This list is frozen: a key leaves out every
other setting at its default, so a new axis changes no stored key."""
YOUNGER_FIELDS: dict[str, dict[str, object]] = {
    "model": {"n_experts": 1, "n_active_experts": 1},
    "workload": {"data": None},
}
"""Fields of a `ModelCase` that its key leaves out at these values, for the same reason."""


YOUNGER_OF_LAYOUTS: dict[str, object] = {"cp": 1, "ep": 1}
"""Likewise fields of a `LayoutCase`'s layout."""


def case_key(case: Case) -> str:
    """A stable 16-digit key of the case's content."""
    # Decoded once, so that an integer given for a float is that float: 64 and 64.0 are equal.
    normal = msgspec.json.decode(msgspec.json.encode(case), type=Case)
    content = msgspec.to_builtins(normal)
    if isinstance(normal, ModelCase):
        for part, younger in YOUNGER_FIELDS.items():
            fields = content[part].items()
            content[part] = dict(each for each in fields if each not in younger.items())
    if isinstance(normal, LayoutCase):
        fields = content["layout"].items()
        content["layout"] = dict(each for each in fields if each not in YOUNGER_OF_LAYOUTS.items())
    if isinstance(normal, LeverCase):
        defaults = msgspec.to_builtins(Configuration())
        content["configuration"] = {
            name: value
            for name, value in content["configuration"].items()
            if name in SPELLED_OUT[type(normal)] or value != defaults[name]
        }
    if isinstance(normal, StepCase):
        for name, default in (
            ("configuration", AS_WRITTEN),
            ("written", AS_WRITTEN),
            ("handles", ()),
            ("waits", ()),
        ):
            if getattr(normal, name) == default:
                del content[name]
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:16]


def same_work(one: LeverCase, other: LeverCase) -> bool:
    """Whether the cases differ only in their configurations."""
    alike: LeverCase = msgspec.structs.replace(one, configuration=other.configuration)
    return alike == other
