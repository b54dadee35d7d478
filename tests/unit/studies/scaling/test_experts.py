"""The mixture and its dense peers: counts by hand."""

import pytest

from peakward.studies.scaling import experts

MIXTURE, ACTIVE, TOTAL = experts.served()
ROUTERS = 32 * 8 * 4096
CACHED = 2 * 32 * 8 * 128 * 2
"""Bytes a position."""


def test_the_dense_models_lack_the_routers_and_nothing_else():
    assert MIXTURE.n_parameters == 46_702_792_704
    assert TOTAL.n_parameters == TOTAL.n_active_parameters == MIXTURE.n_parameters - ROUTERS
    assert ACTIVE.n_parameters == MIXTURE.n_active_parameters - ROUTERS


def test_flops_by_hand():
    # All matrices but the embedding; attention of 4096/2 keys, 4·4096 a pair and layer.
    matrices = ACTIVE.n_parameters - 32_000 * 4096 - 65 * 4096
    per_token = 2 * matrices + 32 * 4 * 4096 * 2048
    assert ACTIVE.training_flops_per_token == pytest.approx(3 * per_token)
    # The mean decode step attends to 1025 … 1279 positions.
    decoding = 2 * matrices + 32 * 4 * 4096 * 1152
    assert ACTIVE.decoding_flops_per_token == pytest.approx(decoding)
    assert MIXTURE.decoding_flops_per_token == pytest.approx(decoding + 2 * ROUTERS)


def test_a_step_of_one_token_reads_the_active_experts_a_large_batch_all():
    one, many = ([each.cost.decode.bytes for each in row.floors] for row in (MIXTURE, ACTIVE))
    assert one[0] - many[0] == pytest.approx(2 * ROUTERS)
    total = TOTAL.floors[1].cost.decode.bytes
    untouched = 32 * 8 * 0.75**64 * 3 * 4096 * 14_336 * 2
    assert one[1] == pytest.approx(total + 2 * ROUTERS - untouched)


def test_memory_by_hand():
    memory = MIXTURE.floors[1].cost.memory
    assert memory.weights_bytes == 2 * 46_702_792_704
    assert memory.cache_bytes == 64 * 1279 * CACHED


def test_the_least_step_is_the_traffic_over_the_datasheet_s_bandwidth():
    for row in (MIXTURE, ACTIVE, TOTAL):
        for floor in row.floors:
            assert floor.decode.bound == "memory"
            assert floor.decode.floor_s == pytest.approx(floor.cost.decode.bytes / 4.8e12)


def test_bytes_a_token():
    for shape in experts.shapes():
        by_batch = [experts.bytes_per_token(shape, batch) for batch in experts.EVERY_BATCH]
        assert by_batch == sorted(by_batch, reverse=True)
    assert experts.bytes_per_token(MIXTURE.shape, 1) == MIXTURE.floors[0].cost.decode.bytes
