"""Scheduling of evaluations: admission, memory budget, fair queue, threads."""
