"""Keeps as many replicas as there are to be, and knows which of them serve.

Every replica is asked for a report once a second. One that has not answered for a while is taken
off the list and comes back when it answers: whether its machine, its network or Ray is slow cannot
be told from here. One that Ray calls dead is replaced.
"""

from __future__ import annotations

import logging
import os
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
# Nor is one whose server tells its actor nothing for so long, twice a second being usual.
_HANGS_S = 5.0
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
        # Of a server that hangs its actor still tells.
        silent_s = time.monotonic() - self.heard_at
        silent = silent_s > _SILENCE_S or self.report.silent_s > _HANGS_S
        return "silent" if silent else "serving"

    def take(self, report: Report) -> int:
        """Take note of a report; return how many calls it has refused since the last one."""
        before = self.refused if self.report and self.report.pid == report.pid else 0
        self.report, self.heard_at, self.refused = report, time.monotonic(), report.load.refused
        if report.stopping and self.leave_at is None:
            # A controller before this one told it to.
            self.leave_at = self.heard_at
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

    Raises RuntimeError where the port cannot be had, ValueError where TLS files cannot be used. One
    that takes over replicas ends its process instead, for Ray to start another one: it is the only
    one who could take them down.
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
        try:
            self._listing = self._list(cluster.host())
        except (ValueError, RuntimeError) as error:
            if not self._members:
                raise
            _log.error("replicas cannot be listed error=%s", error)
            time.sleep(_LOOK_S)
            os._exit(1)
        self._stopping, self._stop_lock = threading.Event(), threading.Lock()
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
        with self._stop_lock:
            now = time.monotonic()
            for member in self._members:
                notice_s = _NOTICE_S if member.report else 0.0
                member.leave_at = member.leave_at or now + notice_s
            while self._members:
                self._say_goodbye()
                time.sleep(_LOOK_S / 4)
            self._listing.close()

    def _list(self, host: str) -> Listing:
        deployment = self._deployment
        try:
            return Listing(
                deployment.name,
                host=host,
                port=deployment.port,
                settings=deployment.settings,
                addresses=self._addresses,
            )
        except OSError as error:
            raise RuntimeError(
                f"port {deployment.port} of {host} cannot be had for the list: {error}; another "
                "--port would do"
            ) from error

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
        try:
            name, actor = cluster.place_replica(self._deployment)
        except (ValueError, RuntimeError) as error:
            # Ray will not have it so, such as 1.5 GPUs.
            _log.error("replica cannot be placed error=%s", error)
            self._failures.note(error)
            return
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
            if member.report is None:
                # It has no call, and where there is no room it would never come to stop.
                cluster.remove(member.actor)
                self._members.remove(member)
            elif member.stopping is None:
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
