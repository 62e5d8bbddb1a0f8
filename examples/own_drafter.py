"""A drafter of one's own: it proposes the text that a user expects, and is never trusted."""

import torch
from transformers import AutoModelForCausalLM

import draftproof
from draftproof.models import demo_paths
from draftproof.types import Drafts


class Expected:
    name, ids = "expected text", []
    limit = commit = release = lambda self, row: None  # no limit, and nothing to remember

    def propose(self, rows, wanted):
        found = [self.ids[r.generated : r.generated + k] for r, k in zip(rows, wanted, strict=True)]
        width = max(map(len, found))
        ids = torch.tensor([f + [-1] * (width - len(f)) for f in found], dtype=torch.int64)
        return Drafts(ids=ids.reshape(len(rows), width), counts=list(map(len, found)))


model, drafter = AutoModelForCausalLM.from_pretrained(demo_paths()[0], dtype="float32"), Expected()
pair = draftproof.Pair(model, drafter)
for attempt in ("nothing expected", "its own text", "two tokens wrong"):
    result = pair.generate([[65, 66, 67]], max_new_tokens=26, num_speculative_tokens=4)[0]
    print(f"{attempt}: {result.token_ids[:8]} ... in {result.stats.num_spec_steps} rounds")
    drafter.ids = [*result.token_ids] if attempt == "nothing expected" else [0, 0, *drafter.ids[2:]]
