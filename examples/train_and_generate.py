"""Train a model between generations: the pair follows its weights, as RL rollouts need."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftproof import Pair
from draftproof.models import demo_paths

target, _ = demo_paths()
model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(target)
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)

with Pair(model, "ngram", tokenizer=tokenizer) as pair:
    for step in range(5):
        (rollout,) = pair.generate(["The list is"], max_new_tokens=16)
        print(step, repr(rollout.text))
        ids = torch.tensor([tokenizer("The list is sorted in place.")["input_ids"]])
        model(ids, labels=ids).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
