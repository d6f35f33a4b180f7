"""Benchmarks of several servers: split evaluations, replicas on Ray."""
