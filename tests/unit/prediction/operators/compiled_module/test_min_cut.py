"""The least cut of small networks."""

from peakward.prediction.operators.compiled_module.min_cut import Network

SOURCE, SINK = 0, 5


def cut(*edges):
    network = Network(6)
    for edge in edges:
        network.edge(*edge)
    side = network.source_side(SOURCE, SINK)
    return {(start, end) for start, end, _ in edges if start in side and end not in side}


def test_the_narrowest_edge_of_a_path_is_cut():
    assert cut((0, 1, 9), (1, 2, 3), (2, 5, 4)) == {(1, 2)}


def test_two_narrow_edges_are_cut_before_a_wide_one():
    paths = (0, 1, None), (1, 2, 2), (1, 3, 2), (2, 4, None), (3, 4, None)
    assert cut(*paths, (4, 5, 5)) == {(1, 2), (1, 3)}
    assert cut(*paths, (4, 5, 3)) == {(4, 5)}


def test_flow_is_led_back_where_the_first_path_stood_in_the_way():
    """0-1-4-5 takes both middles first; only by way of the reverse edge do four units flow."""
    edges = (0, 1, 2), (0, 2, 2), (1, 3, 2), (1, 4, 2), (2, 4, 2), (3, 5, 2), (4, 5, 2)
    assert cut(*edges) in ({(0, 1), (0, 2)}, {(3, 5), (4, 5)})
