"""The transformers door: `model.generate(..., custom_generate=draftproof.custom_generate)`.

`generate` prepares its inputs, settings, processors and criteria as always, with its own warnings
and refusals, and then hands over; rows come back padded as `generate` pads them.
"""

from draftproof.dropin.door import custom_generate
from draftproof.executors.choice import release

__all__ = ["custom_generate", "release"]
