"""Benchmarks of LocalClient beside PyTorch, oneDNN and a copy loop."""
