"""Banded maps and the plans made of them."""

from __future__ import annotations

from gradwire_server.plans.banded_map import BandedMap
from gradwire_server.plans.plan import Pass, Plan, fill_empty

__all__ = ["BandedMap", "Pass", "Plan", "fill_empty"]
