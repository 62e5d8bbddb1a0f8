"""Benchmarks: workloads, clocks outside the algorithm, one JSON line per run, reports.

`paper` reproduces every table of the paper; see `draftproof bench paper --help`.
"""
