"""Benchmarks: each drives the system from outside, as a user would, and compares by ratios within one run."""
