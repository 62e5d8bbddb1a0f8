"""Models that OpenVINO runs, with its paged attention, behind the Protocol of all executors.

Needs the extra `draftproof[openvino]`. Only `blocks` can be imported without it.
"""
