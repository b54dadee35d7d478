"""Products of tokens, vocabulary and width by cuBLAS, whole vectors of the vocabulary apart from the rest.

In 16 bits cuBLAS has fast kernels only for rows of whole vectors, of 16 bytes, however far they lie
apart: over 50,257 words the three products took 39.5 ms on an H100, and 7.7 with the words padded (8,192
× 2,560). So a vocabulary's last words, fewer than a vector has, are multiplied by themselves, with zeros
beside them: no copy of the weight is made for it.

A matrix of logits or of their gradient, `rows`, has `row_length` columns; what is past the vocabulary is
zero.
"""

import torch
from torch import Tensor

from peakward.kernels.ops.linear_cross_entropy.workspace import VECTOR


def logits(hidden: Tensor, weight: Tensor, rows: Tensor) -> None:
    """rows = hidden·weightᵀ."""
    vocab = weight.shape[0]
    whole, end = _whole(vocab)
    add_product(rows[:, :whole], hidden, weight[:whole].mT, first=True)
    if whole < vocab:
        add_product(rows[:, whole:end], hidden, _padded(weight[whole:]).mT, first=True)
    clear_rest(rows, vocab)


def clear_rest(rows: Tensor, vocab: int) -> None:
    """Writes zeros into the columns past the vocabulary, because 0·inf is not 0."""
    if vocab < rows.shape[1]:
        rows[:, vocab:].zero_()


def to_hidden(rows: Tensor, weight: Tensor, total: Tensor, *, first: bool) -> None:
    """total (+)= rows·weight."""
    vocab = weight.shape[0]
    whole, end = _whole(vocab)
    add_product(total, rows[:, :whole], weight[:whole], first=first)
    if whole < vocab:
        add_product(total, rows[:, whole:end], _padded(weight[whole:]), first=False)


def to_weight(rows: Tensor, hidden: Tensor, total: Tensor, *, first: bool) -> None:
    """total (+)= rowsᵀ·hidden."""
    vocab = total.shape[0]
    whole, end = _whole(vocab)
    add_product(total[:whole], rows[:, :whole].mT, hidden, first=first)
    if whole < vocab:
        rest = _padded(total[whole:])
        add_product(rest, rows[:, whole:end].mT, hidden, first=first)
        total[whole:] = rest[: vocab - whole]


def add_product(total: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """total (+)= a·b in the type of total, that of a and b or fp32; the first one overwrites."""
    if total.dtype == a.dtype or a.device.type == "cpu":
        a, b = a.to(total.dtype), b.to(total.dtype)
        if first:
            torch.mm(a, b, out=total)
        else:
            total.addmm_(a, b)
    elif first:
        torch.mm(a, b, out_dtype=torch.float32, out=total)
    else:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)


def _whole(vocab: int) -> tuple[int, int]:
    """Words in whole vectors; and with zeros past the vocabulary."""
    whole = vocab // VECTOR * VECTOR
    return whole, whole + VECTOR


def _padded(rows: Tensor) -> Tensor:
    """With rows of zeros past them, as many as a vector has."""
    padded = rows.new_zeros(VECTOR, rows.shape[1])
    padded[: rows.shape[0]] = rows
    return padded
