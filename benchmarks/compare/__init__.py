"""Paired comparison of this tree with the baseline commit."""
