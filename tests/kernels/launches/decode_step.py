"""What the kernels of a fused step of decode are started with, of one row and of several."""

from functools import partial

import torch

from launch import Launch
from peakward.kernels.ops.decode_step.triton import launch, launch_several
from peakward.kernels.ops.decode_step.triton.launch import Matrix, Texts
from peakward.kernels.ops.decode_step.triton.settings import cut_for, rows_cut_for, split_for

D_MODEL, D_FF, HEADS, HEAD_DIM, VOCAB, CAPACITY = 2560, 10240, 32, 80, 10_000, 1024
SHAPES = {
    "qkv": (3 * D_MODEL, D_MODEL),
    "out": (D_MODEL, D_MODEL),
    "up": (2 * D_FF, D_MODEL),
    "down": (D_MODEL, D_FF),
    "head": (VOCAB, D_MODEL),
    "down of 14,336 columns": (4096, 14_336),
    "down of 18,944 columns": (3584, 18_944),
}
REGISTERS = 65_536
"""Of a multiprocessor."""


def _matrix(name: str, bits: int) -> Matrix:
    n, k = SHAPES[name]
    if bits == 16:
        return Matrix(_of(n, k), None, n, k)
    if bits == 8:
        return Matrix(_of(n, k, dtype=torch.int8), _of(1, n), n, k)
    return Matrix(_of(k // 128, n, 16, dtype=torch.int32), _of(k // 128, n), n, k)


def _of(*size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


def _held(
    n_sequences: int, kv_heads: int, *, page_size: int = 0, narrow: bool = False
) -> launch.Held:
    size, table = (n_sequences, kv_heads, CAPACITY), None
    if page_size:
        n_pages = CAPACITY // page_size
        size = (n_sequences * n_pages, kv_heads, page_size)
        table = _of(n_sequences, n_pages, dtype=torch.int32)
    cache = _of(*size, HEAD_DIM, dtype=torch.int8 if narrow else torch.bfloat16)
    scale = _of(*size, dtype=torch.float32) if narrow else None
    return launch.Held(cache, cache, scale, scale, table)


def _queries(m: int, heads: int, kv_heads: int, *, narrow: bool) -> torch.Tensor:
    """Beside a cache in int8 new keys and values stand behind them."""
    return _of(m, heads + (2 * kv_heads if narrow else 0), HEAD_DIM)


def _rows(
    name: str,
    m: int,
    bits: int = 16,
    n_new: int = 1,
    *,
    chooses: bool = False,
    page_size: int = 0,
    narrow: bool = False,
) -> None:
    matrix = _matrix(name, bits)
    cut = rows_cut_for(n=matrix.n, k=matrix.k, per_word=matrix.per_word)
    then, x = launch_several.first_of(matrix, cut, 4 << 20), _of(m, D_MODEL)
    normed = launch_several.normed_of(x, 1e-5, 160)
    if name == "qkv":
        angles = _of(CAPACITY, HEAD_DIM // 2)
        held = _held(m // n_new, HEADS, page_size=page_size, narrow=narrow)
        position = _of(m // n_new, dtype=torch.int64)
        q = _queries(m, HEADS, HEADS, narrow=narrow)
        launch_several.rotated(normed, matrix, None, angles, angles, position, q, held, cut=cut)
    elif name == "up":
        launch_several.gated(normed, matrix, _of(m, D_FF), then=then, cut=cut)
    elif name == "head":
        size, dtype = (VOCAB, torch.bfloat16) if not chooses else (157, torch.int64)
        launch_several.logits(normed, matrix, _of(m, size, dtype=dtype), cut=cut)
    else:
        given = _of(m, matrix.k)
        pieces = launch_several.pieces_of(x, cut)
        launch_several.added(
            given, matrix, x, _of(D_MODEL), normed, pieces=pieces, then=then, cut=cut
        )


def _attention(
    n_sequences: int,
    n_new: int,
    heads: int,
    kv_heads: int,
    *,
    page_size: int = 0,
    narrow: bool = False,
    capacity: int = CAPACITY,
) -> None:
    q = _queries(n_sequences * n_new, heads, kv_heads, narrow=narrow)
    out = _of(n_sequences * n_new, heads, HEAD_DIM)
    held = _held(n_sequences, kv_heads, page_size=page_size, narrow=narrow)
    n_pairs = n_sequences * kv_heads
    split = split_for(n_pairs=n_pairs, capacity=capacity, n_multiprocessors=132, narrow=narrow)
    pieces = (n_pairs, split.splits, n_new * heads // kv_heads)
    launch.attention(
        q, held, _of(n_sequences, dtype=torch.int64), _of(*pieces, HEAD_DIM, dtype=torch.float32),
        _of(*pieces, 2, dtype=torch.float32), _of(n_pairs, dtype=torch.int32), out,
        then=launch.first_of(_matrix("out", 16), 4 << 20), split=split,
    )  # fmt: skip


def _embedded() -> None:
    x = _of(8, D_MODEL)
    to = launch_several.normed_of(x, 1e-5, launch_several.embedding_blocks(D_MODEL))
    ids = _of(8, dtype=torch.int64)
    launch_several.embedded(ids, _of(VOCAB, D_MODEL), x, _of(D_MODEL), to)


def _rotated_of_one_row(page_size: int = 0, *, bits: int = 16, narrow: bool = False) -> None:
    matrix, angles = _matrix("qkv", bits), _of(CAPACITY, HEAD_DIM // 2)
    cut = cut_for(n=matrix.n, k=matrix.k, per_word=matrix.per_word)
    launch.rotated(
        _of(1, D_MODEL), _of(D_MODEL), 1e-5, matrix, None, angles, angles,
        _of(1, dtype=torch.int64), _queries(1, HEADS, HEADS, narrow=narrow),
        _held(1, HEADS, page_size=page_size, narrow=narrow), cut=cut, n_programs=132 * cut.programs,
    )  # fmt: skip


def _one_row(name: str, bits: int) -> None:
    if name == "qkv":
        _rotated_of_one_row(bits=bits)
        return
    matrix = _matrix(name, bits)
    cut = cut_for(n=matrix.n, k=matrix.k, per_word=matrix.per_word)
    x, then, n_programs = _of(1, matrix.k), launch.first_of(matrix, 4 << 20), 132 * cut.programs
    if name == "up":
        gain, out = _of(matrix.k), _of(1, matrix.n // 2)
        launch.gated(x, gain, 1e-5, matrix, out, then=then, cut=cut, n_programs=n_programs)
    else:
        out = _of(1, matrix.n)
        launch.product(
            x, None, 1e-5, matrix, out, adds=True, then=then, cut=cut, n_programs=n_programs
        )


def _chosen_of_one_row() -> None:
    matrix, x = _matrix("head", 16), _of(1, D_MODEL)
    cut = cut_for(n=matrix.n, k=matrix.k, per_word=2)
    keys = _of(1, 132 * cut.programs, dtype=torch.int64)
    launch.product(
        x, _of(D_MODEL), 1e-5, matrix, keys, adds=False, then=launch.first_of(matrix, 0), cut=cut,
        n_programs=132 * cut.programs,
    )  # fmt: skip
    whole = partial(_of, dtype=torch.int64)
    ended = _of(1, dtype=torch.bool)
    texts = Texts(whole(1, 1), whole(1), whole(1, 99), whole(1), whole(1), ended, whole(2))
    launch.chosen(keys, texts)


def _launch(start: partial[None], registers: int, shared_kib: int, stack_bytes: int = 0) -> Launch:
    return Launch(start, registers, shared_kib << 10, stack_bytes, capabilities=(90,))


def _of_layers() -> dict[str, Launch]:
    """The products of a layer. With triton 3.6 ptxas spills one or two registers in int4, of 96 where it may
    take 168."""
    return {
        f"{name} of {m} in {bits} bits": _launch(
            partial(_rows, name, m, bits), 136, 120, stack_bytes=8 if bits == 4 else 0
        )
        for name in ("qkv", "out", "up", "down")
        for m, bits in ((8, 16), (16, 16), (8, 8), (8, 4), (16, 4))
    }


def _of_one_row() -> dict[str, Launch]:
    """The products of a layer and wide ones, of one row: a multiprocessor has as many programs of each as its
    cut says."""
    found = {}
    for name in ("qkv", "out", "up", "down", "down of 14,336 columns", "down of 18,944 columns"):
        for bits in (16, 8, 4):
            n, k = SHAPES[name]
            cut = cut_for(n=n, k=k, per_word=32 // bits)
            registers = REGISTERS // (32 * cut.warps * cut.programs)
            # Of 128 registers ptxas of triton 3.6 and of 3.7 spills two.
            stack_bytes = 8 if (name, bits) == ("qkv", 8) else 0
            found[f"{name} of one row in {bits} bits"] = _launch(
                partial(_one_row, name, bits), registers, 6, stack_bytes
            )
    return found


def _to_int8() -> dict[str, Launch]:
    """Attention to caches in int8, of one sequence and of several, in rows and in pages."""
    narrow = partial(partial, _attention, narrow=True)
    return {
        "attention of one row to int8": _launch(narrow(1, 1, 32, 32), 168, 41),
        "attention of one row to int8 in pages": _launch(
            narrow(1, 1, 32, 32, page_size=16), 168, 41
        ),
        "attention of one row to many in int8": _launch(
            narrow(1, 1, 32, 32, capacity=4096), 128, 45
        ),
        "attention of one row to many in int8 in pages": _launch(
            narrow(1, 1, 32, 32, page_size=16, capacity=4096), 128, 45
        ),
        "attention of 8 to int8": _launch(narrow(8, 1, 32, 32), 128, 45),
        "attention of 8 of 4 heads to int8": _launch(narrow(8, 1, 32, 8), 128, 45),
        "attention of 5 new tokens to int8": _launch(narrow(1, 5, 32, 32), 168, 41),
        "attention of 16 new tokens to int8": _launch(narrow(1, 16, 32, 32), 168, 41),
        "attention of 5 new tokens of 7 heads to int8": _launch(narrow(1, 5, 14, 2), 255, 56),
    }


# A multiprocessor has at least two programs of each, by shared memory; of 64 queries by registers one.
LAUNCHES = {
    "the choice of one row": _launch(partial(_chosen_of_one_row), 128, 2),
    "qkv of one row into pages": _launch(partial(_rotated_of_one_row, 16), 168, 2),
    "qkv of one row beside int8": _launch(partial(_rotated_of_one_row, narrow=True), 168, 2),
    "rows of the table": _launch(partial(_embedded), 32, 1),
    **_of_one_row(),
    **_of_layers(),
    "the choice of 16": _launch(partial(_rows, "head", 16, chooses=True), 136, 66),
    "logits of 5": _launch(partial(_rows, "head", 5), 80, 56),
    # ptxas of triton 3.7 spills two registers, of 80 where it may take 168.
    "qkv of 5 new tokens": _launch(partial(_rows, "qkv", 5, n_new=5), 80, 56, stack_bytes=8),
    "qkv of 8 into pages": _launch(partial(_rows, "qkv", 8, page_size=16), 136, 120),
    "qkv of 8 beside int8": _launch(partial(_rows, "qkv", 8, narrow=True), 136, 120),
    **_to_int8(),
    "attention of one row": _launch(partial(_attention, 1, 1, 32, 32), 204, 41),
    "attention of one row to many": _launch(
        partial(_attention, 1, 1, 32, 32, capacity=4096), 128, 45
    ),
    "attention of one row to many in pages": _launch(
        partial(_attention, 1, 1, 32, 32, page_size=16, capacity=4096), 128, 45
    ),
    "attention of 8": _launch(partial(_attention, 8, 1, 32, 32), 128, 45),
    "attention of 8 to pages": _launch(partial(_attention, 8, 1, 32, 32, page_size=16), 128, 45),
    "attention of 5 new tokens": _launch(partial(_attention, 1, 5, 32, 32), 192, 41),
    "attention of 5 new tokens of 7 heads": _launch(partial(_attention, 1, 5, 14, 2), 168, 56),
}
