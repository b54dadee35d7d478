"""dq as it is summed: fp32, in the order of the registers that hold a tile, 16 bytes a thread.

So added to, a warp's lanes reach 512 bytes side by side with one instruction each for four values
(`red.global.add.v4.f32`, PTX ISA 8.1, sm_90). A tile of `queries` × head_dim is two halves,
one a warpgroup: of 128 queries, 64 by head_dim, the main columns first and then the rest; of head_dim
128, transposed, 64 of it by 64 queries.
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_wait

from peakward.kernels.ops.flash_attention.hopper.settings import columns_of
from peakward.kernels.ops.recording import launch

ADD = gl.constexpr(
    "{ .reg .b64 a; cvt.s64.s32 a, $8; add.s64 a, a, $4;"
    " red.global.add.v4.f32 [a], {$12, $13, $14, $15};"
    " mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; }"
)
LOAD = gl.constexpr(
    "{ .reg .b64 a; cvt.s64.s32 a, $8; add.s64 a, a, $4; ld.global.v4.f32 {$0, $1, $2, $3}, [a]; }"
)
LOAD_OPERANDS = gl.constexpr("=f,=f,=f,=f,l,l,l,l,r,r,r,r")
ADD_OPERANDS = gl.constexpr("=r,=r,=r,=r,l,l,l,l,r,r,r,r,r,r,r,r")


@gluon.jit
def _quad(row, column):  # type: ignore[no-untyped-def]
    """Which four values, in the order they lie in, those of a row and column are among.

    In a warpgroup's result (PTX ISA, wgmma .m64nNk16, D fragment) a thread holds, of each eight
    columns, two neighbours of a row and of the row eight below.
    """
    thread = (row // 16) * 32 + (row % 8) * 4 + (column % 8) // 2
    return (column // 8) * 128 + thread


@gluon.jit
def add(dq, half_ptr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):  # type: ignore[no-untyped-def]
    """Adds half a tile, as a product left it, to its sum."""
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    # Four values have one address: of the operands, which come by fours, the first is used.
    gl.inline_asm_elementwise(
        ADD,
        ADD_OPERANDS,
        [half_ptr.to(gl.int64), _quad(row, column) * 16, dq],
        dtype=gl.int32,
        is_pure=False,
        pack=4,
    )


@gluon.jit
def _loaded(ptr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):  # type: ignore[no-untyped-def]
    """Sums as they were added, 16 bytes at a time: one by one a warp's loads touch 32 sectors each."""
    ADDED: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, COLUMNS, 16]
    )
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, ADDED))[:, None]
    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, ADDED))[None, :]
    return gl.inline_asm_elementwise(
        LOAD,
        LOAD_OPERANDS,
        [ptr.to(gl.int64), _quad(row, column) * 16],
        dtype=gl.float32,
        is_pure=True,
        pack=4,
    )


@gluon.jit(do_not_specialize=["scale", "q_len", "n_halves", "n_heads"])
def _attention_round(  # type: ignore[no-untyped-def]
    sums_ptr,
    out_ptr,
    scale,
    q_len,
    n_halves,
    n_heads,
    batch_stride,
    head_stride,
    row_stride,
    QUERIES: gl.constexpr,
    MAIN: gl.constexpr,
    REST: gl.constexpr,
):
    gdc_wait()
    ROWS: gl.constexpr = 64
    D: gl.constexpr = MAIN + REST
    ALONG_D: gl.constexpr = QUERIES == ROWS
    COLUMNS: gl.constexpr = QUERIES if ALONG_D else MAIN
    half = gl.program_id(0)
    head = gl.program_id(1)
    half_ptr = sums_ptr + (head.to(gl.int64) * n_halves + half) * (QUERIES * D // 2)
    sums = _loaded(half_ptr, ROWS, COLUMNS)
    # Neighbours along head_dim go to one thread: of a transposed half those are rows.
    LAYOUT: gl.constexpr = (
        gl.BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1])
        if ALONG_D
        else gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    )
    dq = gl.convert_layout((sums * scale).to(out_ptr.dtype.element_ty), LAYOUT)
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    if ALONG_D:
        query = (half // 2) * QUERIES + column
        d = (half % 2) * ROWS + row
    else:
        query = half * ROWS + row
        d = column
    head_ptr = out_ptr + (head // n_heads).to(gl.int64) * batch_stride
    head_ptr += (head % n_heads).to(gl.int64) * head_stride
    gl.store(
        head_ptr + query.to(gl.int64) * row_stride + d,
        dq,
        mask=(query < q_len) & (d < D),
    )
    if REST:
        rest = _loaded(half_ptr + ROWS * MAIN, ROWS, REST)
        NEIGHBOURS: gl.constexpr = gl.BlockedLayout(
            [1, 8], [256 // REST, REST // 8], [4, 1], [1, 0]
        )
        dq_rest = gl.convert_layout((rest * scale).to(out_ptr.dtype.element_ty), NEIGHBOURS)
        row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, NEIGHBOURS))[:, None]
        column = gl.arange(0, REST, layout=gl.SliceLayout(0, NEIGHBOURS))[None, :]
        query = half * ROWS + row
        rest_ptr = head_ptr + query.to(gl.int64) * row_stride + MAIN + column
        gl.store(rest_ptr, dq_rest, mask=query < q_len)


def rounded(sums: Tensor, dq: Tensor, queries: int, scale: float) -> None:
    """Fills dq, (batch, heads, q_len, head_dim) of any strides, with scale times its sums.

    Args:
        sums: (batch, heads, tiles · queries, head_dim) in fp32, ordered as above.
    """
    batch, n_heads, q_len, d = dq.shape
    n_halves = sums.shape[2] // queries * 2
    main, rest = columns_of(d)
    launch(
        _attention_round,
        (n_halves, batch * n_heads),
        sums,
        dq,
        scale,
        q_len,
        n_halves,
        n_heads,
        *dq.stride()[:3],
        QUERIES=queries,
        MAIN=main,
        REST=rest,
        num_warps=4,
        launch_pdl=True,
    )
