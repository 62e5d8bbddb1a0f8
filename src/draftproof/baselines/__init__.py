"""Published methods that corrupt the output, written from their description, faults included.

They are here to be measured and to prove that the checks of this package find what is wrong with
them. `draftproof.load` does not know them; give one to `Pair(method=...)`.
"""

from draftproof.baselines.bsp import BSP
from draftproof.baselines.dsd import DSD

__all__ = ["BSP", "DSD"]
