"""Models that transformers computes: on Peakward's caches they say what they say without any."""

import itertools
import json
import logging
import threading
from threading import RLock

import pytest
import torch

from gguf_files import MERGES, TOKENS
from peakward import generate, serve
from peakward.lab.inference.decoding import Decoding
from peakward.lab.inference.drafts import ModelDraft, NGrams
from peakward.lab.inference.generate import generate as make
from peakward.lab.inference.heavy_hitters import HeavyHitterCache
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.pretrained import load, load_any
from peakward.lab.inference.sequences import ContiguousCache
from peakward.lab.inference.speculation import Speculation
from peakward.lab.models import transformers_source
from peakward.records.errors import PeakwardError
from peakward.records.generation import Sampling
from transformers_models import MODELS, SCALED, WINDOWED, built

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
safetensors = pytest.importorskip("safetensors.torch")
from peakward.lab.inference import transformers_model  # noqa: E402  (imports transformers)
from peakward.lab.inference.transformers_model import TransformersModel  # noqa: E402


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return TransformersModel(built(*MODELS[request.param]), request.param)


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


def ids_of(n, rows=1):
    drawn = torch.Generator().manual_seed(1)
    return torch.randint(1, len(TOKENS), (rows, n), generator=drawn)


def cache_of(model, kind=ContiguousCache, **others):
    size = {"capacity": 32} if kind is not PagedCache else {"n_pages": 16, "page_size": 4}
    return kind(model.shape, n_rows=2, device="cpu", dtype=torch.float32, **{**size, **others})


@pytest.mark.parametrize("kind", [ContiguousCache, PagedCache])
@torch.inference_mode()
def test_rows_of_unequal_lengths_go_on_as_without_a_cache(model, kind):
    ids, cache = ids_of(20), cache_of(model, kind)
    expected = model.module(input_ids=ids, use_cache=False).logits[0]
    row, starts = ids[0].tolist(), (11, 2)
    for number, length in enumerate(starts):
        found = cache.prefill(model, number, row[:length])
        assert relative(found[0], expected[length - 1]) < 1e-5
    for each in range(7):
        at = [length + each for length in starts]
        found = cache.logits(model, ids[0, at][:, None], slice(0, 2))
        assert relative(found, expected[at]) < 1e-5
    ends = [length + 7 for length in starts]
    several = torch.stack([ids[0, end : end + 2] for end in ends])
    found = cache.all_logits(model, several, slice(0, 2), n_logits=2)
    at = torch.tensor([[end, end + 1] for end in ends])
    assert relative(found, expected[at]) < 1e-5


def test_greedy_texts_are_those_of_transformers(model):
    prompts, n = [ids_of(9)[0].tolist(), ids_of(3)[0].tolist()], 8
    decoding = Decoding(model, cache_of(model), by=Sampling(), most_new_tokens=n)
    found = make(decoding, prompts).tokens
    for prompt, made in zip(prompts, found, strict=True):
        given = torch.tensor([prompt])
        theirs = model.module.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=n,
            do_sample=False,
            eos_token_id=None,
        )
        assert made == theirs[0, len(prompt) :].tolist()


@torch.inference_mode()
def test_keys_and_values_of_a_byte(model):
    cache = cache_of(model, stored=torch.int8)
    ids = ids_of(12)
    expected = model.alone(ids)[0, 8:]
    cache.prefill(model, 0, ids[0, :8].tolist())
    rows = slice(0, 1)
    found = torch.cat([cache.logits(model, ids[:, at : at + 1], rows) for at in range(8, 12)])
    assert 1e-5 < relative(found, expected) < 0.2


def test_masks_of_other_models_stay_as_they_are(model):
    table = transformers_model.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    before = dict(table)
    cache = cache_of(model)
    cache.prefill(model, 0, [1, 2, 3])
    cache.prefill(model, 1, [1, 2])
    cache.logits(model, torch.tensor([[4], [5]]), slice(0, 2))
    assert dict(table) == before


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("bert", {}, "other logits for tokens one by one than for all at once"),
        ("mamba", {"state_size": 4}, "(MambaForCausalLM) with "),
        # Positions from the cache's length: right in the longest row alone.
        (
            "roformer",
            {"is_decoder": True, "embedding_size": 32},
            "other logits for tokens one by one",
        ),
        # A window that is counted back from the last slot.
        (
            "gpt_neo",
            {"attention_types": [[["global", "local"], 1]], "window_size": 8, "num_layers": 2}
            | {"num_heads": 4},
            "other logits for tokens one by one",
        ),
        # Queries are scaled by the number of tokens held, from 8,192 on.
        (
            "llama4_text",
            {
                "no_rope_layers": [1, 0],
                "intermediate_size_mlp": 48,
                "head_dim": 8,
                "num_local_experts": 2,
            },
            "a count of the slots that it takes for tokens",
        ),
        ("bamba", {"mamba_n_heads": 8}, "states that are no keys and values"),
    ],
)
def test_what_keeps_something_else_is_refused_in_a_line(kind, changes, said):
    with pytest.raises(PeakwardError) as caught:
        TransformersModel(built(kind, changes), kind)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "small"
    built("gemma2", {"sliding_window": 4, "head_dim": 8}).save_pretrained(path)
    pairs = [tuple(pair.split()) for pair in MERGES]
    vocabulary = {token: number for number, token in enumerate(TOKENS)}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=pairs))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens([TOKENS[0]])
    inner.save(str(path / "tokenizer.json"))
    return path


def test_the_configuration_that_was_named_is_computed(folder):
    held = json.loads((folder / "config.json").read_text())
    capped = folder / "capped.json"
    capped.write_text(json.dumps({**held, "final_logit_softcapping": 0.125}))
    ids = torch.tensor([[1, 2, 3]])
    as_stored, found = (load_any(str(each), **ON_CPU).model.alone(ids) for each in (folder, capped))
    assert as_stored.abs().max() > 0.125 >= found.abs().max()
    with pytest.raises(PeakwardError, match=r"model_type that transformers .* has in tokenizer"):
        load_any(str(folder / "tokenizer.json"), **ON_CPU)


def test_weights_of_whole_numbers(folder):
    stored = safetensors.load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    safetensors.save_file({**stored, name: stored[name].int()}, folder / "model.safetensors")
    with pytest.raises(PeakwardError, match="expected weights of floating-point numbers"):
        load_any(str(folder), **ON_CPU)


def test_weights_of_other_sizes_are_one_line(folder, caplog, monkeypatch):
    # Its logger keeps what it is told from the root's handlers.
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "vocab_size": 1000}))
    sizes = rf"got \S+ of \({len(TOKENS)}, \d+\) for \(1000, \d+\): take both from one model"
    with pytest.raises(PeakwardError, match=sizes):
        load_any(str(folder), **ON_CPU)
    assert not caplog.records


def test_advice_of_transformers_on_a_configuration_is_not_told(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    transformers.BertConfig(**sizes, intermediate_size=16).save_pretrained(tmp_path)
    transformers_source.build(str(tmp_path), "as-written", device="meta", seed=0)
    assert not caplog.records


def test_guesses_have_room_behind_the_last_token_too(folder):
    longest = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    with pytest.raises(PeakwardError) as caught:
        generate(folder, "hell", max_new_tokens=longest - 1, guesses=2, device="cpu")
    said = f"expected a prompt, new tokens and guesses of at most {longest:,}, which small takes, got 1, "
    assert str(caught.value).startswith(said)


PROMPTS = ["hello hello", "hell", "the hell"]
ON_CPU = {"attention": "sdpa", "device": "cpu", "dtype": torch.float32}


def test_a_folder_that_no_shape_expresses_generates_in_every_way(folder):
    found = generate(folder, PROMPTS, max_new_tokens=8, device="cpu")
    assert found.shape is None
    assert found.computed_by == f"Gemma2ForCausalLM of transformers {transformers.__version__}"
    assert "can express, got Gemma2ForCausalLM" in found.not_fused
    texts = [each.text for each in found.continuations]
    guessed = generate(folder, PROMPTS, max_new_tokens=8, device="cpu", guesses=3)
    assert [each.text for each in guessed.continuations] == texts
    assert guessed.n_guessed > 0
    queued = serve(folder, PROMPTS, rows=2, max_new_tokens=8, device="cpu")
    assert [each.text for each in queued.continuations] == texts
    assert queued.n_equal == len(PROMPTS)
    drafted = generate(folder, PROMPTS, max_new_tokens=8, device="cpu", guesses=2, draft=folder)
    assert [each.text for each in drafted.continuations] == texts
    assert drafted.n_kept == drafted.n_guessed > 0


def test_the_bytes_of_a_step_are_those_of_its_weights_and_of_what_is_in_reach(folder):
    found = generate(folder, PROMPTS[0], max_new_tokens=2, device="cpu")
    module = load_any(str(folder), **ON_CPU).model.module
    weights = sum(each.nbytes for each in module.parameters())  # Its head is its embedding.
    n = found.continuations[0].n_prompt_tokens + 1
    assert n > 4
    kept = (4 + n) * 2 * 2 * 8 * 4  # A window of 4 in one of the two layers; two heads, 8 wide.
    assert found.bytes_per_step == weights + kept


def test_a_plain_llama_stays_in_the_reference_decoder(folder):
    built("llama", {}).save_pretrained(folder)
    found = generate(folder, PROMPTS[0], max_new_tokens=2, device="cpu")
    assert found.computed_by is None
    assert found.shape.n_layers == 2


def refusal(folder, call=load_any, **others):
    with pytest.raises(PeakwardError) as caught:
        call(str(folder), **{**ON_CPU, **others})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_bad_folders_end_in_a_line(folder, monkeypatch):
    assert "Peakward's decoder reads no other" in refusal(folder, load)
    with monkeypatch.context() as without:
        without.setattr("peakward.lab.inference.pretrained.find_spec", lambda _: None)
        assert "transformers would compute the model itself" in refusal(folder)
    changed(folder, num_hidden_layers=3, layer_types=None)
    assert "model.layers.2" in refusal(folder)
    changed(folder, num_hidden_layers=2, layer_types=None, vocab_size=len(TOKENS) + 5)
    assert "expected" in refusal(folder)
    changed(folder, vocab_size=len(TOKENS), model_type="none_such")
    assert "none_such" in refusal(folder)
    changed(folder, model_type="gemma2")
    weights = folder / "model.safetensors"
    weights.rename(folder / "pytorch_model.bin")
    assert "the pickle pytorch_model.bin, which may run any code" in refusal(folder)
    (folder / "pytorch_model.bin").rename(weights)
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    assert "got model.safetensors, which is damaged" in refusal(folder)
    weights.write_bytes(whole)
    changed(folder, quantization_config={"quant_method": "mxfp4"})
    assert "got a quantization_config ('mxfp4')" in refusal(folder)
    changed(folder, quantization_config=None, eos_token_id=2**63)
    (folder / "generation_config.json").unlink()
    assert f"for eos_token_id in config.json, got {2**63}" in refusal(folder)


def test_weights_with_nan_and_too_many_words_end_in_a_line(folder):
    module = built("gemma2", {"sliding_window": 4, "head_dim": 8})
    module.model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    module.save_pretrained(folder)
    assert "got NaN or infinity in 'model.layers.1.mlp.up_proj.weight'" in refusal(folder)
    built("gemma2", {"head_dim": 8, "vocab_size": len(TOKENS) - 1}).save_pretrained(folder)
    assert f"at most {len(TOKENS) - 1:,} tokens" in refusal(folder)


def test_code_that_a_folder_names_is_not_run(folder):
    changed(folder, auto_map={"AutoModelForCausalLM": "bad.Bad"})
    (folder / "bad.py").write_text("raise SystemExit('ran')")
    assert load_any(str(folder), **ON_CPU).model.kind == "Gemma2ForCausalLM"


def test_blocks_to_leave_out_are_those_of_the_reference_decoder(folder):
    with pytest.raises(PeakwardError, match="own decoder to leave blocks out of, got small"):
        generate(folder, "hell", guesses=2, draft="skip:0-0", max_new_tokens=2, device="cpu")


def test_a_model_is_built_in_the_type_of_its_passes_with_its_own_buffers(folder):
    found = transformers_source.build(
        str(folder), "as-written", device="cpu", seed=0, dtype=torch.bfloat16
    ).module
    assert {each.dtype for each in found.parameters()} == {torch.bfloat16}
    assert found.model.rotary_emb.inv_freq.dtype == torch.float32


LONG = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 24,
    "factor": 2.0,
}


def test_a_text_of_longrope_ends_where_its_angles_would_change():
    module = built("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 24})
    model = TransformersModel(module, "small")
    assert model.shape.max_seq_len == 24
    cache = cache_of(model)
    cache.prefill(model, 0, ids_of(24)[0].tolist())
    with pytest.raises(PeakwardError, match="at most 24 tokens"):
        cache.logits(model, torch.tensor([[1], [1]]), slice(0, 2))


def test_angles_that_follow_the_longest_row_are_not_captured():
    scaled = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0}
    assert not TransformersModel(built("llama", {"rope_parameters": scaled}), "small").captured
    assert TransformersModel(built("llama", {"rope_parameters": SCALED}), "small").captured


def test_guesses_stay_within_what_the_model_takes():
    model = TransformersModel(built("opt", MODELS["learned positions"][1]), "small")
    with pytest.raises(PeakwardError, match="at most 64 tokens, which small takes, got 10 and 57"):
        Speculation(
            model,
            cache_of(model, capacity=80),
            NGrams(),
            n_guessed=3,
            by=Sampling(),
            most_new_tokens=54,
        ).admit(0, ids_of(10)[0].tolist(), 54, 0)


def test_a_draft_may_have_other_rows_behind_the_tokens_of_both():
    target = TransformersModel(built("gemma2", MODELS[WINDOWED][1]), "target")
    prompt, n = ids_of(6)[0].tolist(), 8
    plain = make(
        Decoding(target, cache_of(target), by=Sampling(), most_new_tokens=n), [prompt, prompt]
    )
    for rows, by in itertools.product((-3, 5), (Sampling(), Sampling(temperature=0.7, seed=3))):
        n_both = len(TOKENS) + min(rows, 0)
        draft = TransformersModel(built("llama", {"vocab_size": len(TOKENS) + rows}), "draft")
        drafter = ModelDraft(draft, cache_of(draft), n_both)
        speculation = Speculation(
            target, cache_of(target), drafter, n_guessed=2, by=by, most_new_tokens=n
        )
        found = make(speculation, [prompt, prompt])
        assert by.temperature or found.tokens == plain.tokens
    with pytest.raises(PeakwardError, match="a draft of the model's vocabulary"):
        ModelDraft(draft, cache_of(draft)).check(len(TOKENS))


def test_two_threads_generate_at_once(folder):
    texts = [None] * 4

    def make_one(number):
        found = generate(folder, PROMPTS, max_new_tokens=6, device="cpu")
        texts[number] = [each.text for each in found.continuations]

    threads = [threading.Thread(target=make_one, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    alone = generate(folder, PROMPTS, max_new_tokens=6, device="cpu")
    assert texts == [[each.text for each in alone.continuations]] * 4


def test_what_is_computed_alone_keeps_passes_of_other_threads_out(model, monkeypatch):
    """Their masks stand in a table of the process."""
    lock, kept_out = RLock(), []

    def ask():
        kept_out.append(not lock.acquire(blocking=False))

    def look(*_):
        other = threading.Thread(target=ask)
        other.start()
        other.join()

    monkeypatch.setattr(transformers_model, "ONE_AT_A_TIME", lock)
    with model.module.register_forward_pre_hook(look):
        model.alone(torch.tensor([[1, 2, 3]]))
    assert kept_out == [True]


def test_a_users_own_masks_stand_again_behind_a_pass_that_failed(model, monkeypatch):
    table = transformers_model.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    own = table["eager"]
    monkeypatch.setattr(table, "_local_mapping", {"sdpa": own})
    cache = cache_of(model)
    cache.prefill(model, 0, [1, 2, 3])
    cache.prefill(model, 1, [1, 2])
    with pytest.raises(IndexError):
        cache.logits(model, torch.tensor([[4], [len(TOKENS)]]), slice(0, 2))
    assert table._local_mapping == {"sdpa": own}


def test_a_cache_that_attends_by_itself_is_refused(model):
    for cache in (
        cache_of(model, attention="flash-decode"),
        HeavyHitterCache(
            model.shape, n_rows=2, n_heavy=4, n_recent=4, device="cpu", dtype=torch.float32
        ),
    ):
        with pytest.raises(PeakwardError, match="that attends by itself: make one as-model"):
            cache.prefill(model, 0, [1, 2, 3])


def test_what_a_step_reads_is_countable_where_it_is_the_same_for_every_token():
    gemma = TransformersModel(built("gemma2", MODELS[WINDOWED][1]), "small")
    assert gemma.countable
    kind, changes = MODELS["values narrower than keys, experts"]
    assert not TransformersModel(built(kind, changes), "small").countable
    assert not TransformersModel(built(*MODELS["layers of two sizes"]), "small").countable


def test_an_added_token_behind_the_embedding_is_no_fault_of_the_folder(folder):
    inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    inner.add_special_tokens(["<image>"])
    inner.save(str(folder / "tokenizer.json"))
    assert generate(folder, "hell", max_new_tokens=2, device="cpu").n_steps == 1
    with pytest.raises(PeakwardError, match="expected tokens from 0 to"):
        generate(folder, "hell<image>", max_new_tokens=2, device="cpu")
