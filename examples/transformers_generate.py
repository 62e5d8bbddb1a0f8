"""Batched assisted generation through transformers' own `generate`."""

from transformers import AutoModelForCausalLM, AutoTokenizer

import draftproof
from draftproof.models import demo_paths

target, draft = demo_paths()
model = AutoModelForCausalLM.from_pretrained(target, dtype="float32")
assistant = AutoModelForCausalLM.from_pretrained(draft, dtype="float32")
tokenizer = AutoTokenizer.from_pretrained(target, padding_side="left")
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
prompts = ["A list is", "When an exception is raised, the"]
inputs = tokenizer(prompts, padding=True, return_tensors="pt")
options = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": tokenizer.pad_token_id}
plain = model.generate(**inputs, **options)
output = model.generate(
    **inputs, **options, custom_generate=draftproof.custom_generate, assistant_model=assistant
)
print(tokenizer.batch_decode(output, skip_special_tokens=True))
print("the same tokens as plain decoding:", output.equal(plain))
