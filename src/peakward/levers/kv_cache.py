"""The key-value cache of a decode step: none, one in the compute type, or one of a byte an element.

Without a cache every step computes all earlier tokens again and reads off the logits behind the last, as
`model(ids)[:, -1]` in a loop does. That is where a user starts who has never heard of a cache.
"""

from peakward.levers.axis import Axis, CodeHint, ComputeCapability, Needs, not_seen
from peakward.records.case import Case, ConfiguredCase, KeptCache, ModelCase
from peakward.records.lever import Lever

STORED: dict[KeptCache, str] = {"int8": "int8", "fp8": "float8_e4m3fn"}
"""torch's type of the elements, of the values that keep a byte each."""
SCALE_BYTES = 4
"""Beside each key and each value of a head: a scale in fp32 (`kernels.decode_attention`)."""


def recomputes(case: Case) -> bool:
    """Whether each step of the case computes all earlier tokens again."""
    return isinstance(case, ModelCase) and case.configuration.kv_cache == "none"


def tokens_computed(case: ModelCase) -> int:
    """Tokens that go through the model in one step of a pass without gradients."""
    work = case.workload
    alone = work.pass_ == "decode" and not recomputes(case)
    return work.batch_size * (1 if alone else work.seq_len)


def _obstacle(case: ConfiguredCase, _capability: ComputeCapability | None) -> str | None:
    if not isinstance(case, ModelCase):
        return None
    chosen, attention = case.configuration.kv_cache, case.configuration.attention
    if chosen == "none":
        if attention == "flash-decode":
            return (
                "kv-cache none computes all tokens again, and attention flash-decode is of a few: "
                "take sdpa"
            )
        return None
    if case.model.head_dim % 2:
        return f"kv-cache {chosen} needs an even head_dim, got {case.model.head_dim}"
    return None


def _narrow(stored: KeptCache, least: ComputeCapability, summary: str) -> Lever:
    return Lever(
        name=f"{stored}-cache",
        summary=summary,
        # Any other attention widens the whole cache first, and so moves more bytes than it saves.
        sets=(("kv_cache", stored), ("attention", "flash-decode")),
        numerics="approximate",
        passes=("decode",),
        device_types=("cuda",),
        vendors=("nvidia",),
        min_compute_capability=least,
    )


_IN_CODE = CodeHint(
    module="is kept by the loop that generates: pass past keys and values with the newest token alone"
)
AXIS = Axis(
    name="kv_cache",
    default="static",
    help="Keys and values of earlier tokens in a decode step: none (all tokens are computed again), static "
    "(kept in the compute type), int8 or fp8 (kept in a byte an element).",
    metavar="NAME,…",
    levers=(
        Lever(
            name="kv-cache",
            summary="keys and values of earlier tokens kept, so that a step computes the newest alone",
            sets=(("kv_cache", "static"),),
            numerics="reordered",
            passes=("decode",),
        ),
        _narrow(
            "int8",
            (8, 0),
            "keys and values kept in 8 bits with a scale for each head's, read by Peakward's own kernel",
        ),
        _narrow(
            "fp8",
            (8, 9),
            "keys and values kept in fp8 (e4m3) with a scale for each head's, read by Peakward's own kernel",
        ),
    ),
    others={"none": Needs(passes=("decode",))},
    obstacle=_obstacle,
    hints=dict.fromkeys(("none", *STORED), _IN_CODE),
    called="KV cache",
    leaves_alone=("optimizer",),
    unseen=not_seen("a capture has the tokens that the module is called on"),
    predicted={"cpu": ("none",), "cuda": ("none", *STORED)},
)
