"""How many examples laws are tried on; conftest.py has the profiles."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(thorough: int, **options: Any) -> settings:
    """Have the profile "thorough" try so many, and any other as many times fewer as it says."""
    usual = settings.get_profile("thorough").max_examples
    return settings(max_examples=max(1, thorough * settings().max_examples // usual), **options)
