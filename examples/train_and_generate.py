"""Train a model between generations: the pair follows its weights, as RL rollouts need."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftproof import Pair
from draftproof.models import demo_paths

target, _ = demo_paths()
model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(target)
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
prompt = tokenizer("The list is", return_tensors="pt")
lesson = tokenizer("The list is sorted in place.", return_tensors="pt").input_ids
equal = 0

with Pair(model, "ngram", tokenizer=tokenizer) as pair:
    for step in range(5):
        (rollout,) = pair.generate(["The list is"], max_new_tokens=16)
        stock = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0]
        equal += stock[prompt.input_ids.shape[1] :].tolist() == rollout.token_ids
        print(step, repr(rollout.text))
        model(lesson, labels=lesson).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
print(f"{equal} of 5 are what model.generate gives")
