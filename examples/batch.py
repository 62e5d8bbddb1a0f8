"""Decode a batch with a draft model; every row with its own length and its own counters."""

import draftproof
from draftproof.models import DEMO_PROMPTS, demo_paths

target, draft = demo_paths()
pair = draftproof.load(target, draft, dtype="float32")
lengths = [8, 16, 24, 32]
for result in pair.generate(DEMO_PROMPTS[:4], max_new_tokens=lengths, num_speculative_tokens=4):
    print(f"{result.index}: {result.text!r} ({result.finish_reason})")
    print(f"   mean acceptance length {result.stats.mean_acceptance_length:.2f}")
