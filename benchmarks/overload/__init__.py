"""Benchmark of servers under three times their peak load."""
