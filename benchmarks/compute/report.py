"""Results of the compute benchmark: records, rows and the printed table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.rounds import CaseTimes

PEERS = ("torch", "onednn")


@dataclass(frozen=True, slots=True)
class ComputeRecord(CaseTimes):
    """One case, dtype and number of threads.

    Contestants are "copy" or a name and a layout.
    """

    threads: int


@dataclass(frozen=True, slots=True)
class Row:
    """One of our backends on one record in one layout.

    Ratios above 1 mean that ours is faster.

    to_peer      [peer in a layout]: ratio
    same_layout  ratio to the fastest peer that was given the same layout
    any_layout   ratio to the fastest peer in any layout
    to_copy      ratio to the copy loop; peer_to_copy is the fastest peer's in this layout
    """

    record: ComputeRecord
    backend: str
    layout: str
    rate: float
    to_peer: dict[str, float]
    same_layout: float | None
    any_layout: float | None
    to_copy: float | None
    peer_to_copy: float | None


def rows(record: ComputeRecord, backend: str) -> Iterator[Row]:
    """Yield a row for each layout a backend ran in."""
    for layout in ("NCX", "NXC"):
        name = f"{backend} {layout}"
        rate = record.rate(name)
        if rate is None:
            continue
        to_peer: dict[str, float] = {}
        for peer in record.seconds:
            times = record.faster(name, peer)
            if peer.split()[0] in PEERS and times is not None:
                to_peer[peer] = times
        same = {peer: value for peer, value in to_peer.items() if peer.endswith(layout)}
        fastest = min(same, key=lambda peer: same[peer], default="")
        yield Row(
            record=record,
            backend=backend,
            layout=layout,
            rate=rate,
            to_peer=to_peer,
            same_layout=same.get(fastest),
            any_layout=min(to_peer.values(), default=None),
            to_copy=record.faster(name, "copy"),
            peer_to_copy=record.faster(fastest, "copy") if fastest else None,
        )


HEADER = (
    f"{'case':27}{'dtype':>9} {'':4}{'thr':>3} {'backend':>10}{'GB/s':>7}{'copy':>7}"
    f"{'/copy':>7}{'/torchNCX':>10}{'/torchNXC':>10}{'/onednnNCX':>11}{'/onednnNXC':>11}{'/same':>7}"
    f"{'/any':>7}"
)


def line(row: Row) -> str:
    """Return one row as a line of text.

    It has GB/s of the backend, GB/s of the copy, and ratios: above 1 the backend is faster than the
    contestant of the column.
    """
    record, peers = row.record, row.to_peer
    return (
        f"{record.case:27}{record.dtype:>9} {row.layout:4}{record.threads:>3} {row.backend:>10}"
        f"{row.rate:7.2f}{_number(record.rate('copy'), 7)}{_number(row.to_copy, 7)}"
        f"{_number(peers.get('torch NCX'), 10)}{_number(peers.get('torch NXC'), 10)}"
        f"{_number(peers.get('onednn NCX'), 11)}{_number(peers.get('onednn NXC'), 11)}"
        f"{_number(row.same_layout, 7)}{_number(row.any_layout, 7)}"
    )


def load(facts: dict[str, Any]) -> list[ComputeRecord]:
    """Read the records of a JSON file."""
    return [ComputeRecord(**one) for one in facts["records"]]


def _number(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.2f}"
