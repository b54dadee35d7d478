"""What a workload says of its own lengths."""

from peakward.records.inference import ServingWorkload


def test_each_output_token_but_the_first_is_a_step_and_the_last_is_never_cached() -> None:
    load = ServingWorkload(batch_size=1, prompt_len=10, output_len=4)
    # The prefill gives token 11; feeding 11, 12 and 13 gives the other three.
    assert list(load.contexts) == [11, 12, 13]
    assert load.cached_len == load.contexts[-1] == 13
