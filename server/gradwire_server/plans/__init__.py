"""Banded maps and the plans made of them."""

from gradwire_server.plans.banded_map import BandedMap
from gradwire_server.plans.plan import Pass, Plan

__all__ = ["BandedMap", "Pass", "Plan"]
