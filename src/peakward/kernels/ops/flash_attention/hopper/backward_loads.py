"""One warp of a backward program: it draws tiles of keys, and has the copy engine fetch what they need."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra.cuda import gdc_wait

from peakward.kernels.ops.flash_attention.hopper.backward_sizes import first_block
from peakward.kernels.ops.flash_attention.hopper.schedule import draw, place


@gluon.jit
def _copy(  # type: ignore[no-untyped-def]
    source, source_rest, batch, head, row, full, main, rest, sizes
):
    """Both pieces of a tile."""
    tma.async_copy_global_to_shared(source, [batch, head, row, 0], full, main)
    if sizes.rest:
        place = [batch, head, row, sizes.main]
        tma.async_copy_global_to_shared(source_rest, place, full, rest)


@gluon.jit
def bring(  # type: ignore[no-untyped-def]
    q,
    dout,
    k,
    v,
    lse,
    delta,
    q_rest,
    dout_rest,
    k_rest,
    v_rest,
    qs,
    douts,
    lses,
    deltas,
    ks,
    v_tiles,
    rests,
    turns,
    counter,
    q_len,
    k_len,
    n_k_blocks,
    n_q_blocks,
    n_tiles,
    heads_at_once,
    n_all_heads,
    sizes,
):
    """A tile of keys, then the queries that see it, one tile after the other."""
    RESTS: gl.constexpr = k_rest.block_type.nbytes + v_rest.block_type.nbytes if sizes.rest else 0
    Q_REST: gl.constexpr = q_rest.block_type.nbytes if sizes.rest else 0
    DOUT_REST: gl.constexpr = dout_rest.block_type.nbytes if sizes.rest else 0
    # Launched while the rows' terms and the zeros are still being written, as is what rounds the sums: 3 to
    # 4 µs of 465 to 497 earlier with 512 causal tokens. All else waits for this warp.
    gdc_wait()
    turn = 0
    step = 0
    index = gl.program_id(0)
    while index < n_tiles:
        # Early keys are seen by the most queries: what takes longest is started first.
        block, head = place(index, n_k_blocks, heads_at_once, n_all_heads)
        turns.announce(block, head, turn)
        batch = head // sizes.n_heads
        own = head % sizes.n_heads
        kv_head = own // sizes.group
        first = first_block(block, q_len, k_len, sizes)
        ks.wait_empty(turn)
        full = ks.filled(turn)
        mbarrier.expect(full, k.block_type.nbytes + v.block_type.nbytes + RESTS)
        key = block * sizes.keys
        slot = turn % ks.n_tiles
        _copy(k, k_rest, batch, kv_head, key, full, ks.tile(turn), rests.k.index(slot), sizes)
        _copy(v, v_rest, batch, kv_head, key, full, v_tiles.index(slot), rests.v.index(slot), sizes)
        # The answer takes most of a microsecond: it comes while these tiles do.
        index = gl.num_programs(0) + draw(counter)
        for j in range(first, n_q_blocks):
            row = j * sizes.queries
            slot = step % qs.n_tiles
            qs.wait_empty(step)
            full = qs.filled(step)
            mbarrier.expect(full, q.block_type.nbytes + lse.block_type.nbytes + Q_REST)
            _copy(q, q_rest, batch, own, row, full, qs.tile(step), rests.q.index(slot), sizes)
            tma.async_copy_global_to_shared(lse, [batch, own, row], full, lses.index(slot))
            douts.wait_empty(step)
            full = douts.filled(step)
            mbarrier.expect(full, dout.block_type.nbytes + delta.block_type.nbytes + DOUT_REST)
            _copy(
                dout,
                dout_rest,
                batch,
                own,
                row,
                full,
                douts.tile(step),
                rests.dout.index(slot),
                sizes,
            )
            tma.async_copy_global_to_shared(delta, [batch, own, row], full, deltas.index(slot))
            step += 1
        turn += 1
    turns.announce(-1, 0, turn)
