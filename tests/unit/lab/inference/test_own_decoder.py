"""The decoder of docs/how-to/generate.md on our caches and samplers, carried out as it stands there."""

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "generate.md"


@pytest.fixture(scope="module")
def example():
    (code,) = re.findall(
        r'^```python title="own_decoder.py"\n(.*?)^```$', PAGE.read_text(), re.M | re.S
    )
    names = {}
    torch.manual_seed(0)
    exec(compile(code, "own_decoder.py", "exec"), names)
    return names


def test_its_texts_are_those_of_each_whole_text_read_anew(example):
    for prompt, made in zip(example["prompts"], example["greedy"].tokens, strict=True):
        ids = list(prompt)
        for _ in made:
            cache = example["ContiguousCache"](
                example["SHAPE"], n_rows=1, capacity=32, **example["on_cpu"]
            )
            with torch.inference_mode():
                logits = cache.prefill(example["model"], 0, ids)
            ids.append(int(logits.argmax()))
        assert made == ids[len(prompt) :]


def test_guesses_and_a_queue(example):
    assert example["guessed"].tokens == example["greedy"].tokens
    assert [len(each) for each in example["served"].tokens] == [8, 8, 8]


def test_a_forked_row_goes_on_as_its_whole_text(example):
    for last, logits in zip((4, 5), example["apart"], strict=True):
        cache = example["ContiguousCache"](
            example["SHAPE"], n_rows=1, capacity=4, **example["on_cpu"]
        )
        with torch.inference_mode():
            expected = cache.prefill(example["model"], 0, [1, 2, 3, last])
        assert torch.allclose(logits, expected[0], atol=1e-5)
