"""The embedded pair: small on disk, one tokenizer, and a draft that is right often enough."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftproof.models import DEMO_PROMPTS, demo_paths

K, ROUNDS = 4, 8


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(demo_paths()[0])


@pytest.fixture(scope="module")
def pair():
    return tuple(
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in demo_paths()
    )


def test_both_folders_fit_in_a_wheel():
    files = [file for path in demo_paths() for file in path.iterdir()]
    assert sum(file.stat().st_size for file in files) <= 16_000_000


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_the_tokenizers_are_the_same_file(name):
    target, draft = demo_paths()
    assert (target / name).read_bytes() == (draft / name).read_bytes()


def test_tokenizer_and_models_agree_on_the_vocabulary(tokenizer, pair):
    assert {model.config.vocab_size for model in pair} == {len(tokenizer)}
    assert {model.config.eos_token_id for model in pair} == {tokenizer.eos_token_id}
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_text_survives_the_tokenizer(tokenizer):
    text = "Übung: the naïve  café,\n\tindented 12345 times"
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_a_chat_ends_where_the_answer_begins(tokenizer):
    chat = [{"role": "user", "content": "What does wrap do?"}]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert prompt == "Q: What does wrap do?\nA:"


def test_the_prompts_differ_widely_in_length(tokenizer):
    lengths = [len(tokenizer(prompt).input_ids) for prompt in DEMO_PROMPTS]
    assert len(lengths) == 8
    assert min(lengths) <= 3
    assert 200 <= max(lengths) <= 320
    assert len(set(lengths)) == 8


@torch.no_grad()
def greedy(model, ids, count):
    """`ids` `[1, T]` followed by the model's `count` greedy choices, recomputed from scratch."""
    for _ in range(count):
        logits = model(input_ids=ids, use_cache=False).logits
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
    return ids


def accepted_by_greedy(target, draft, ids):
    """How many of K drafted tokens equal the target's choices, and `ids` after the round."""
    truth = greedy(target, ids, K + 1)[0, ids.shape[1] :].tolist()
    guess = greedy(draft, ids, K)[0, ids.shape[1] :].tolist()
    n = next((i for i in range(K) if guess[i] != truth[i]), K)
    return n, torch.cat([ids, torch.tensor([truth[: n + 1]])], dim=1)


def test_the_target_accepts_at_least_half_of_the_draft(tokenizer, pair):
    accepted = 0
    for prompt in DEMO_PROMPTS[3:5]:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        for _ in range(ROUNDS):
            n, ids = accepted_by_greedy(*pair, ids)
            accepted += n
    assert accepted / (2 * ROUNDS * K) >= 0.5
