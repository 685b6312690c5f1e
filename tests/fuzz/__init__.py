"""Fuzzers: random damage to what comes from outside, and what goen may answer to it.

``python -m tests.fuzz`` runs many cases, in processes with limits on time and memory;
``tests/test_fuzz.py`` runs a few of each. A case is determined by its fuzzer, a seed and a number.
"""
