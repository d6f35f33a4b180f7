"""Actor that lists serving replicas and keeps their number as wanted.

Ray starts dead replicas anew, and returns the replicas that exist by their names. A replica reports
twice a second while its server serves. A replica that is silent for a while is off the list until
it reports again, since its server, its machine or its network may be slow.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gradwire_ray import cluster
from gradwire_ray.deployment import Deployment
from gradwire_ray.listing import Listing
from gradwire_ray.replica import Report
from gradwire_ray.scaling import Scaling

_log = logging.getLogger("gradwire_ray")

State = Literal["starting", "serving", "silent", "leaving"]

_LOOK_S = 1.0
# A replica that reports nothing for this long is off the list.
_SILENCE_S = 5.0
# Time for callers to notice that a replica is off the list; the SDK looks every 2 s.
_NOTICE_S = 5.0


@dataclass(slots=True, eq=False)
class Member:
    """A replica as the controller knows it.

    report    its last report, which came at heard_at
    stopping  the thread that stops and removes it; None while it stays
    """

    report: Report | None = None
    heard_at: float = 0.0
    stopping: threading.Thread | None = None

    @property
    def state(self) -> State:
        """State of the replica."""
        if self.stopping is not None or (self.report and self.report.stopping):
            return "leaving"
        if self.report is None or self.report.failure:
            return "starting"
        return "silent" if time.monotonic() - self.heard_at > _SILENCE_S else "serving"

    @property
    def told(self) -> dict[str, Any]:
        """State of the replica, and its last report unless it failed."""
        told: dict[str, Any] = {"state": self.state}
        if self.report is not None and not self.report.failure:
            told |= asdict(self.report)
        return told

    def take(self, report: Report) -> None:
        """Take note of a report."""
        self.report, self.heard_at = report, time.monotonic()


class Controller:
    """Controller of the replicas; Ray makes an actor of it.

    The actor's methods run in threads.

    Raises RuntimeError if the port cannot be had, ValueError if TLS files cannot be used. If there
    are replicas already it ends its process instead, for Ray to start another one: only a
    controller can have them finish their calls.
    """

    def __init__(self, deployment: Deployment) -> None:
        cluster.log()
        self._deployment = deployment
        self._failure = ""
        # Replaced as a whole: several threads read it.
        self._members: dict[str, Member] = {}
        # Replicas of an earlier controller stay.
        self._find()
        self._scaling = Scaling(deployment)
        self._scaling.wanted = min(max(len(self._members), deployment.least), deployment.most)
        try:
            self._listing = Listing(
                deployment.name,
                host=cluster.host(),
                port=deployment.port,
                settings=deployment.settings,
                addresses=lambda: [report.address for report in self._serving()],
            )
        except (ValueError, RuntimeError) as error:
            if not self._members:
                raise
            _log.error("replicas cannot be listed error=%s", error)
            time.sleep(_LOOK_S)
            os._exit(1)
        self._stopping = threading.Event()
        self._running = threading.Thread(target=self._run, name="gradwire-controller", daemon=True)
        self._running.start()

    def tell(self, name: str, report: Report) -> None:
        """Take a replica's report."""
        if member := self._members.get(name):
            member.take(report)

    def status(self) -> dict[str, Any]:
        """Return the fields of `gradwire-ray status`."""
        deployment, members = self._deployment, self._members
        reports = [member.report for member in members.values() if member.report]
        return {
            "name": deployment.name,
            "target": self._listing.url,
            "wanted": self._scaling.wanted,
            "least": deployment.least,
            "most": deployment.most,
            "failure": next((one.failure for one in reports if one.failure), self._failure),
            "replicas": [{"name": name, **member.told} for name, member in members.items()],
        }

    def stop(self) -> None:
        """Have all replicas finish their calls and end; list none."""
        self._stopping.set()
        self._running.join()
        self._find()
        members = self._members
        for name, member in members.items():
            self._remove(name, member)
        for member in members.values():
            if member.stopping is not None:
                member.stopping.join()

    def _serving(self) -> list[Report]:
        """Return the reports of the replicas that serve."""
        members = self._members.values()
        return [one.report for one in members if one.report and one.state == "serving"]

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - logged, and shown by status
                # Replicas go on serving, and the next look may do better.
                _log.exception("a look at the replicas failed")
                self._failure = str(error)
            else:
                self._failure = ""

    def _find(self) -> None:
        """Make a member for each replica in Ray, the oldest first."""
        names = cluster.replica_names(self._deployment.name)
        self._members = {name: self._members.get(name, Member()) for name in names}

    def _look(self) -> None:
        self._find()
        members = self._members
        before = self._scaling.wanted
        wanted = self._scaling.look(self._serving())
        if wanted != before:
            _log.info("scaling from=%d to=%d", before, wanted)
        staying = [name for name, member in members.items() if member.state != "leaving"]
        for _ in range(wanted - len(staying)):
            cluster.place_replica(self._deployment)
        # The youngest replicas stop first: their caches hold the least. Replicas that an earlier
        # controller told to stop are stopping already, and are removed too.
        for name, member in members.items():
            if name not in staying[:wanted]:
                self._remove(name, member)

    def _remove(self, name: str, member: Member) -> None:
        """Have a replica finish its calls and end, in a thread."""
        if member.stopping is None:
            member.stopping = threading.Thread(
                target=self._stop_replica, args=(name, member.report), daemon=True
            )
            member.stopping.start()

    def _stop_replica(self, name: str, report: Report | None) -> None:
        # A replica that does not serve has no calls; without resources it cannot answer stop().
        if report is not None and not report.failure:
            time.sleep(_NOTICE_S)
            cluster.stop_replica(name, self._deployment.drain_s)
        cluster.remove(name)
