"""Models that OpenVINO runs, with its paged attention, behind the Protocol of all executors.

Needs the extra `draftproof[openvino]`; nothing here is imported unless executor="openvino".
"""

from draftproof.executors.openvino.executor import PagedExecutor
from draftproof.executors.openvino.model import PagedModel, Settings

__all__ = ["PagedExecutor", "PagedModel", "Settings"]
