"""The decision table: what each pattern of evidence means. Read from the top; the first that holds
speaks.

A rule gets the lab and returns the reasons for which it holds, or None. It asks for the controls
it needs, so a cheap rule that holds spares the dear ones. The table is about rows whose tokens
differ; rows that merely end elsewhere are judged in `ends`.
"""

from __future__ import annotations

from draftproof.forensics.rules.afresh import AFRESH
from draftproof.forensics.rules.base import Reasons, Rule
from draftproof.forensics.rules.batches import NEIGHBOURS
from draftproof.forensics.rules.blocks import BLOCKS
from draftproof.forensics.rules.company import COMPANY
from draftproof.forensics.rules.last import LAST, MISSING
from draftproof.forensics.rules.plain import PLAIN
from draftproof.forensics.rules.ragged import RAGGED
from draftproof.forensics.rules.trust import DELIVERY, TRUST

__all__ = ["RULES", "Reasons", "Rule"]

RULES: tuple[Rule, ...] = (
    *(*TRUST, *DELIVERY, *PLAIN, *NEIGHBOURS, *BLOCKS, *RAGGED),
    *(*MISSING, *AFRESH, *COMPANY, *LAST),
)
