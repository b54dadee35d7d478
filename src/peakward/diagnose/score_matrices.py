"""Operators that make, change or read a score matrix, told by the shapes that a trace recorded."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from peakward.diagnose.kernels import PRODUCT
from peakward.records.profile import OperatorRate

SOFTMAX = re.compile(r"^aten::_(?:safe_)?softmax$")
Dims = tuple[int, ...]


class Scores(NamedTuple):
    """Of `n` heads of all sequences, for each query a score of each key."""

    n: int
    n_queries: int
    n_keys: int


def of_score_matrices(operators: Sequence[OperatorRate]) -> tuple[OperatorRate, ...]:
    """Those that work on the result of a softmax which a batched product then takes: attention's, since
    neither a router's probabilities nor a classifier's are multiplied with a matrix for each head."""
    taken = {_scores(tensors[0]) for each in operators if (tensors := _product(each))}
    known = {
        found
        for each in operators
        if SOFTMAX.search(each.name) and (found := _scores(_tensors(each)[0])) in taken
    }
    return tuple(each for each in operators if _works_on(each, known))


def _works_on(each: OperatorRate, known: Iterable[Scores | None]) -> bool:
    tensors = _tensors(each)
    made = {_scores(dims) for dims in tensors}
    if product := _product(each):
        left, right = product
        made.add(_scores((*left[:-1], right[-1])))
    # Their transposes too: what gradients of keys and values are products of.
    made |= {Scores(at.n, at.n_keys, at.n_queries) for at in made if at is not None}
    return any(at in made for at in known)


def _product(each: OperatorRate) -> list[Dims] | None:
    """Both operands of a batched product, of whichever name."""
    if not PRODUCT.search(each.name):
        return None
    batched: list[Dims] = [dims for dims in _tensors(each) if len(dims) == 3]
    return batched[-2:] if len(batched) >= 2 else None


def _tensors(each: OperatorRate) -> list[Dims]:
    found = [tuple(map(int, re.findall(r"\d+", one))) for one in each.dims.split(", ")]
    return found or [()]


def _scores(dims: Dims) -> Scores | None:
    """A tensor of as many dimensions as scores have, at least a head's two and a batch of them."""
    if len(dims) < 3:
        return None
    return Scores(math.prod(dims[:-2]), dims[-2], dims[-1])
