"""Benchmarks of small and large calls beside bare gRPC servers."""
