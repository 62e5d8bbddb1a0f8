"""Models that OpenVINO runs, with its paged attention, behind the Protocol of all executors.

Needs the extra `draftproof[openvino]`. Only `blocks` and `feeding` can be imported
without it.
"""
