"""One warp of a backward program: it draws tiles of keys, and has the copy engine fetch what they need."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from peakward.lab.ops.flash_attention.hopper.backward_sizes import first_block
from peakward.lab.ops.flash_attention.hopper.schedule import draw, place


@gluon.jit
def bring(  # type: ignore[no-untyped-def]
    q,
    dout,
    k,
    v,
    lse,
    delta,
    qs,
    douts,
    lses,
    deltas,
    ks,
    v_tiles,
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
    turn = 0
    step = 0
    index = gl.program_id(0)
    while index < n_tiles:
        # Early keys are seen by the most queries: what takes longest is started first.
        block, head = place(index, n_k_blocks, heads_at_once, n_all_heads)
        turns.announce(block, head, turn)
        batch = head // sizes.n_kv_heads
        kv_head = head % sizes.n_kv_heads
        first = first_block(block, q_len, k_len, sizes)
        ks.wait_empty(turn)
        full = ks.filled(turn)
        mbarrier.expect(full, k.block_type.nbytes + v.block_type.nbytes)
        key = block * sizes.keys
        tma.async_copy_global_to_shared(k, [batch, kv_head, key, 0], full, ks.tile(turn))
        tma.async_copy_global_to_shared(
            v, [batch, kv_head, key, 0], full, v_tiles.index(turn % ks.n_tiles)
        )
        # The answer takes most of a microsecond: it comes while these tiles do.
        index = draw(counter)
        for member in range(sizes.group):
            own = kv_head * sizes.group + member
            for j in range(first, n_q_blocks):
                row = j * sizes.queries
                qs.wait_empty(step)
                full = qs.filled(step)
                mbarrier.expect(full, q.block_type.nbytes + lse.block_type.nbytes)
                tma.async_copy_global_to_shared(q, [batch, own, row, 0], full, qs.tile(step))
                tma.async_copy_global_to_shared(
                    lse, [batch, own, row], full, lses.index(step % qs.n_tiles)
                )
                douts.wait_empty(step)
                full = douts.filled(step)
                mbarrier.expect(full, dout.block_type.nbytes + delta.block_type.nbytes)
                tma.async_copy_global_to_shared(dout, [batch, own, row, 0], full, douts.tile(step))
                tma.async_copy_global_to_shared(
                    delta, [batch, own, row], full, deltas.index(step % qs.n_tiles)
                )
                step += 1
        turn += 1
    turns.announce(-1, 0, turn)
