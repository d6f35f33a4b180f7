"""Keeps as many replicas as there are to be, and knows which of them serve.

Every replica is asked for a report once a second. One that has not answered for a while is taken
off the list and comes back when it answers: whether its machine, its network or Ray is slow cannot
be told from here. One that Ray calls dead is replaced.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from gradwire_ray import cluster
from gradwire_ray.deployment import Deployment
from gradwire_ray.listing import Listing
from gradwire_ray.replica import Report
from gradwire_ray.scaling import Scaling

_log = logging.getLogger("gradwire_ray")

State = Literal["starting", "serving", "silent", "leaving"]

_LOOK_S = 1.0
# A replica that says nothing for so long is not told of any more.
_SILENCE_S = 3.0
# How long callers may take to notice that one is not told of any more; the SDK looks every 2 s.
_NOTICE_S = 5.0
# Replicas that do not come to serve are tried again after a pause that doubles up to this.
_MOST_PAUSE_S = 30.0


@dataclass(slots=True, eq=False)
class Member:
    """A replica as the controller knows it.

    actor     Ray's handle
    asked     the report it was asked for, as a reference of Ray's; None where none is due
    report    its last one, and heard_at when that came
    away      whether Ray could not reach it the last time
    refused   calls it had refused by its last report, of the server with that pid
    stopping  a reference that is done when it has stopped; None while it is not told to
    leave_at  when it is told to
    """

    name: str
    actor: Any
    asked: Any = None
    report: Report | None = None
    heard_at: float = 0.0
    away: bool = False
    refused: int = 0
    stopping: Any = None
    leave_at: float | None = None

    @property
    def state(self) -> State:
        """How it stands."""
        if self.leave_at is not None:
            return "leaving"
        if self.report is None:
            return "starting"
        return "serving" if time.monotonic() - self.heard_at <= _SILENCE_S else "silent"

    def take(self, report: Report) -> int:
        """Take note of a report; return how many calls it has refused since the last one."""
        before = self.refused if self.report and self.report.pid == report.pid else 0
        self.report, self.heard_at, self.refused = report, time.monotonic(), report.load.refused
        return report.load.refused - before


@dataclass(slots=True)
class Failures:
    """Replicas that ended before they served, in a row: the next one waits."""

    count: int = 0
    last: str = ""
    next_at: float = field(default=0.0)

    def note(self, error: Exception) -> None:
        """Note one."""
        self.count += 1
        self.last = str(error)
        self.next_at = time.monotonic() + min(2.0**self.count, _MOST_PAUSE_S)


class Controller:
    """Ray makes an actor of it, whose methods run in threads.

    Raises OSError where the port cannot be had, ValueError where TLS files cannot be used.
    """

    def __init__(self, deployment: Deployment) -> None:
        cluster.log()
        self._deployment = deployment
        self._scaling = Scaling(deployment)
        self._failures = Failures()
        # Those of a controller before this one serve on.
        self._members = [
            Member(name, actor) for name, actor in cluster.replicas(deployment.name).items()
        ]
        self._scaling.wanted = min(max(len(self._members), deployment.least), deployment.most)
        self._listing = Listing(
            deployment.name,
            host=cluster.host(),
            port=deployment.port,
            settings=deployment.settings,
            addresses=self._addresses,
        )
        self._stopping = threading.Event()
        self._running = threading.Thread(target=self._run, name="gradwire-controller", daemon=True)
        self._running.start()

    def status(self) -> dict[str, Any]:
        """Return what `gradwire-ray status` shows."""
        deployment = self._deployment
        return {
            "name": deployment.name,
            "target": self._listing.url,
            "wanted": self._scaling.wanted,
            "least": deployment.least,
            "most": deployment.most,
            "failure": self._failures.last if self._failures.count else "",
            "replicas": [_told(member) for member in self._members],
        }

    def stop(self) -> None:
        """Have all replicas finish their calls and end; tell of none any more."""
        self._stopping.set()
        self._running.join()
        now = time.monotonic()
        for member in self._members:
            member.leave_at = member.leave_at or now + _NOTICE_S
        while self._members:
            self._say_goodbye()
            time.sleep(_LOOK_S / 4)
        self._listing.close()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            try:
                self._look()
            except Exception:  # noqa: BLE001 - it is logged, with all there is
                # Whatever it is, replicas serve on, and the next look may do better.
                _log.exception("a look at the replicas failed")

    def _look(self) -> None:
        refused = self._ask()
        serving = [member for member in self._members if member.state == "serving"]
        loads = [member.report.load for member in serving if member.report is not None]
        before = self._scaling.wanted
        wanted = self._scaling.look(loads, refused=refused)
        if wanted != before:
            _log.info("scaling from=%d to=%d", before, wanted)
        staying = [member for member in self._members if member.leave_at is None]
        for _ in range(wanted - len(staying)):
            self._place()
        # The youngest goes: it has the least in its caches.
        for member in staying[wanted:]:
            member.leave_at = time.monotonic() + _NOTICE_S
        self._say_goodbye()

    def _place(self) -> None:
        if self._failures.count and time.monotonic() < self._failures.next_at:
            return
        name, actor = cluster.place_replica(self._deployment)
        self._members.append(Member(name, actor))

    def _ask(self) -> int:
        """Ask all for reports, take those that come in time; return the calls refused meanwhile."""
        refused = 0
        for member in self._members:
            if member.asked is None:
                member.asked = member.actor.report.remote()
        answered = cluster.done([member.asked for member in self._members], timeout_s=_LOOK_S / 2)
        for member in [one for one in self._members if one.asked in answered]:
            asked, member.asked = member.asked, None
            try:
                refused += member.take(cluster.result(asked))
            except cluster.GoneError as error:
                self._forget(member, error)
            except cluster.AwayError as error:
                if not member.away:
                    _log.warning("replica is away replica=%s error=%s", member.name, error)
                member.away = True
            else:
                if member.away:
                    _log.info("replica is back replica=%s", member.name)
                member.away, self._failures.count = False, 0
        return refused

    def _forget(self, member: Member, error: Exception) -> None:
        _log.error("replica is gone replica=%s error=%s", member.name, error)
        self._members.remove(member)
        if member.report is None:
            self._failures.note(error)

    def _say_goodbye(self) -> None:
        """Have those leave whose time has come, and forget those that have."""
        now = time.monotonic()
        for member in list(self._members):
            if member.leave_at is None or now < member.leave_at:
                continue
            if member.stopping is None:
                member.stopping = member.actor.stop.remote(self._deployment.drain_s)
            elif cluster.done([member.stopping], timeout_s=0):
                cluster.remove(member.actor)
                self._members.remove(member)

    def _addresses(self) -> list[str]:
        return [
            member.report.address
            for member in list(self._members)
            if member.report is not None and member.state == "serving"
        ]


def _told(member: Member) -> dict[str, Any]:
    told: dict[str, Any] = {"name": member.name, "state": member.state}
    if member.report is not None:
        load = member.report.load
        told |= {
            "address": member.report.address,
            "host": member.report.host,
            "pid": member.report.pid,
            "waiting": round(load.waiting, 2),
            "busy": round(load.busy, 2),
            "loop": round(load.loop, 2),
            "streams": load.streams,
        }
    return told
