"""Results that an operator sets to zero before it writes into them: with a fill inside of it, which a
trace counts as an operator of its own and the closed form as bytes of the one around it."""

from collections import defaultdict

from peakward.records.op_graph import OpGraph
from peakward.records.profile import CaseProfile, OperatorRate
from peakward.studies.roofline.kinds import kind

NS = 1e-9
FILLED = ("aten.nll_loss_backward", "aten.embedding_dense_backward")
"""Both write a few values in each row of what they have filled: of 129 µs that the loss's backward pass
of 8,192 × 10,000 took an H100, the fill took 99."""
_FILLS = ("aten::fill_", "aten::zero_")
"""On a GPU the first launches the kernel; on a CPU either may do the work."""


def fills_s(profile: CaseProfile, graph: OpGraph) -> dict[str, float | None]:
    """Seconds of a step in such fills, by the kind of the operator around; None where the trace has
    not as many fills of the result's shape as the graph has such operators."""
    wanted: dict[tuple[int, ...], int] = defaultdict(int)
    kinds: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for each in graph.operators:
        if each.name in FILLED:
            (result,) = each.outputs
            wanted[result.shape] += each.count * profile.n_steps
            kinds[kind(each, {})].append(result.shape)
    seen = {shape: _fill_s(profile, shape, n) for shape, n in wanted.items()}
    found: dict[str, float | None] = {}
    for name, shapes in kinds.items():
        times = [known for shape in shapes if (known := seen[shape]) is not None]
        found[name] = sum(times) if len(times) == len(shapes) else None
    return found


def _fill_s(profile: CaseProfile, shape: tuple[int, ...], n: int) -> float | None:
    own = [each for each in profile.profile.operators if _filled_shape(each) == shape]
    if not own or any(each.n != n for each in own):
        return None
    return sum(each.kernel_ns for each in own) * NS / profile.n_steps


def _filled_shape(rate: OperatorRate) -> tuple[int, ...] | None:
    if rate.name not in _FILLS or not rate.dims:
        return None
    return tuple(int(side) for side in rate.dims.partition(", ")[0].split("×"))
