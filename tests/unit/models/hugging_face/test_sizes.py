"""Sizes that no model has are refused by what their names count, before anything is built."""

import pytest

from peakward.models.hugging_face.sizes import refuse_impossible_sizes
from peakward.records.errors import PeakwardError


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"num_hidden_layers": 10**7}, "num_hidden_layers"),
        ({"num_labels": 10**8}, "num_labels"),
        ({"n_layer": 1001}, "n_layer"),
        ({"encoder_layers": 10**5}, "encoder_layers"),
        ({"num_local_experts": 10**6}, "num_local_experts"),
        ({"text_config": {"deep": [{"num_blocks": 10**6}]}}, "num_blocks"),
        ({"max_position_embeddings": 10**9}, "max_position_embeddings"),
        ({"vocab_size": 10**400}, "vocab_size"),
        ({"vocab_size": 10**5000}, "vocab_size"),
        ({"layer_types": ["full_attention"] * 2000}, "layer_types"),
        ({"hybrid_override_pattern": "M*" * 2000}, "hybrid_override_pattern"),
        ({"intermediate_size": [10**9]}, "intermediate_size"),
        ({"anything": [0] * 100_000}, "anything"),
    ],
)
def test_a_size_that_no_model_has_is_refused(config, key):
    with pytest.raises(PeakwardError, match=f"expected '{key}' of here to be at most"):
        refuse_impossible_sizes(config, "here")


def test_numbers_that_are_no_sizes_pass():
    refuse_impossible_sizes(
        {"rope_theta": 10**12, "seed": 2**63, "eos_token_id": 10**9, "tie": True, "eps": 1e300},
        "here",
    )


def test_no_default_of_transformers_is_refused_and_every_size_in_them_can_be():
    transformers = pytest.importorskip("transformers")
    kinds = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    n_seen, sizes = 0, set()
    for kind in kinds:
        try:
            config = transformers.CONFIG_MAPPING[kind]().to_dict()
        except Exception:  # noqa: BLE001  a few have no defaults that fit one another
            continue
        refuse_impossible_sizes(config, kind)
        n_seen += 1
        sizes |= {key for key, value in config.items() if type(value) is int and "theta" not in key}
    assert n_seen > 100 and len(sizes) > 200
    for key in sizes:
        if not key.endswith(("_id", "_index")) and "seed" not in key:
            with pytest.raises(PeakwardError, match=f"expected '{key}' of here"):
                refuse_impossible_sizes({key: 10**8}, "here")
