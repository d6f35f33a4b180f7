"""Description of the replicas on a cluster, as one frozen value.

The controller is made from it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire_server.command import read_settings
from gradwire_server.config.settings import Settings

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# Flags that the command sets itself.
_OURS = ("--address", "--workers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Replicas of one server under one name.

    name           of lower-case letters, digits and hyphens
    least, most    bounds of the number of replicas
    target_queue   evaluations that may wait at each replica before another one starts
    down_after_s   seconds for which fewer must be enough before a replica stops
    num_cpus       CPUs of each, as Ray counts them; whole ones are its threads that compute
    num_gpus       GPUs of each, or a fraction of one
    port           of the controller's list; 0 takes a free one, another one after it was restarted
    flags          of gradwire-server

    Raises ValueError where one is out of range, or flags are not gradwire-server's.
    """

    name: str = "gradwire"
    least: int = 1
    most: int = 1
    target_queue: float = 1.0
    down_after_s: float = 60.0
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    port: int = 50050
    flags: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"name is {self.name!r}; 1 to 63 of lower-case letters, digits and, within, - are "
                "needed"
            )
        if not 1 <= self.least <= self.most:
            raise ValueError(f"min is {self.least} and max {self.most}; 1 <= min <= max is needed")
        if not self.target_queue > 0:
            raise ValueError(f"target_queue is {self.target_queue}; more than 0 is needed")
        if not self.down_after_s >= 1:
            raise ValueError(f"down_after_s is {self.down_after_s}; at least 1 is needed")
        if not (self.num_cpus >= 0 and self.num_gpus >= 0):
            raise ValueError(
                f"num_cpus is {self.num_cpus} and num_gpus {self.num_gpus}; 0 or more is needed"
            )
        if self.num_gpus > 1 and not self.num_gpus.is_integer():
            raise ValueError(
                f"num_gpus is {self.num_gpus}; Ray gives a share of one GPU, or whole ones"
            )
        if not 0 <= self.port < 1 << 16:
            raise ValueError(f"port is {self.port}; 0 to 65535 is needed")
        for flag in self.flags:
            if flag.partition("=")[0] in _OURS:
                raise ValueError(f"{flag} is not for replicas: gradwire-ray places them itself")
        # Replicas listen on their node's address; invalid settings for it raise here.
        _ = self.settings

    @property
    def settings(self) -> Settings:
        """The server's settings, from the flags and this process's variables."""
        return read_settings(["--address", "0.0.0.0:0", *self.flags])

    @property
    def threads(self) -> int:
        """Computing threads of each replica, unless the flags set them."""
        return max(1, int(self.num_cpus))

    @property
    def drain_s(self) -> float:
        """Seconds that calls have to finish when a replica goes."""
        settings = self.settings
        return settings.drain_delay_s + settings.grace_s

    @property
    def controller(self) -> str:
        """The controller's name as an actor."""
        return f"{self.name}/controller"
