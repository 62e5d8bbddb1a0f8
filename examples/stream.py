"""Print the text of two rows while it is written, a line per round and row."""

import draftproof
from draftproof.models import demo_paths

target, _ = demo_paths()
pair = draftproof.load(target, draft="ngram", dtype="float32")
for event in pair.stream(["A list is", "When an exception is raised"], max_new_tokens=24):
    print(f"row {event.index}: {event.text!r}")
    if event.result is not None:
        print(f"row {event.index} ended by {event.result.finish_reason}")
