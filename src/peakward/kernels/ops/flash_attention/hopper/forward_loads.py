"""One warp of a forward program: it draws tiles, and has the copy engine fetch what they need."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra.cuda import gdc_wait

from peakward.kernels.ops.flash_attention.hopper.forward_sizes import n_blocks
from peakward.kernels.ops.flash_attention.hopper.schedule import draw, place


@gluon.jit
def bring(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    qs,
    ks,
    vs,
    turns,
    counter,
    q_len,
    k_len,
    n_heads,
    group,
    n_q_blocks,
    n_tiles,
    heads_at_once,
    n_all_heads,
    sizes,
):
    """Last keys come first: those are the ones that masks cut."""
    # Launched while the counter is still being set to zero (programmatic dependent launch), 1.1 to 1.5 µs
    # of 109 to 133 earlier with 512 causal tokens. All else waits for this warp.
    gdc_wait()
    turn = 0
    step = 0
    index = gl.program_id(0)
    while index < n_tiles:
        # Late queries see the most keys: what takes longest is started first.
        block, head = place(index, n_q_blocks, heads_at_once, n_all_heads)
        block = n_q_blocks - 1 - block
        turns.announce(block, head, turn)
        batch = head // n_heads
        own = head % n_heads
        count = n_blocks(block, q_len, k_len, sizes)
        for i in gl.static_range(sizes.warpgroups):
            rows = turn * sizes.warpgroups + i
            qs.wait_empty(rows)
            mbarrier.expect(qs.filled(rows), q.block_type.nbytes)
            row = (block * sizes.warpgroups + i) * sizes.rows
            tma.async_copy_global_to_shared(q, [batch, own, row, 0], qs.filled(rows), qs.tile(rows))
        for j in range(0, count):
            first_key = (count - 1 - j) * sizes.keys
            ks.wait_empty(step)
            mbarrier.expect(ks.filled(step), k.block_type.nbytes)
            tma.async_copy_global_to_shared(
                k, [batch, own // group, first_key, 0], ks.filled(step), ks.tile(step)
            )
            vs.wait_empty(step)
            mbarrier.expect(vs.filled(step), v.block_type.nbytes)
            tma.async_copy_global_to_shared(
                v, [batch, own // group, first_key, 0], vs.filled(step), vs.tile(step)
            )
            step += 1
            # The answer takes most of a microsecond: it comes while these tiles do.
            if j == 0:
                index = gl.num_programs(0) + draw(counter)
        turn += 1
    turns.announce(-1, 0, turn)
