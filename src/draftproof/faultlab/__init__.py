"""Injected faults and what proves the forensics on them: scenarios, fake servers, the self-test.

It may import `forensics`; nothing but `cli`, benchmarks and tests imports it.
"""
