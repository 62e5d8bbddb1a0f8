"""Watch what a round does to each row: an observer sees every draft and what became of it."""

import draftproof
from draftproof.models import demo_paths


class Watcher:
    def on_round(self, event):
        for row in event.rows:
            if row.drafts:
                verdict = f"{row.accepted} of {len(row.drafts)} accepted"
                print(
                    f"round {event.number}, row {row.index}: {verdict}, {len(row.emitted)} emitted"
                )


target, draft = demo_paths()
pair = draftproof.load(target, draft, dtype="float32")
prompts = ["A list is", "Return a new"]
pair.generate(prompts, max_new_tokens=16, num_speculative_tokens=4, observers=[Watcher()])
