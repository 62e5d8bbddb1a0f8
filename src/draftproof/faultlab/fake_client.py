"""A client of a fake server in the same process, which says how many requests belong together.

A real server is sent nothing but what its format knows; the fake one would have to wait for every
batch until no further request comes.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftproof.faultlab.fake_server import RequestBatcher
from draftproof.forensics.subjects.base import OWN, Inquiry, Run, Setup
from draftproof.forensics.subjects.http import HttpSubject


@dataclass(kw_only=True)
class FakeServerClient(HttpSubject):
    """A server as a subject, whose batches are announced to it within the process."""

    batcher: RequestBatcher

    def run(self, inquiry: Inquiry, setup: Setup = OWN) -> Run:
        """As HttpSubject.run."""
        size, count = setup.batch or self.batch, len(inquiry.tasks)
        self.batcher.expect(min(size, count - first) for first in range(0, count, size))
        return super().run(inquiry, setup)
