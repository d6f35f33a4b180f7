"""What a Prometheus endpoint tells, read by prometheus_client's own parser."""

from __future__ import annotations

import http.client
import math
import ssl
from contextlib import closing
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer.

    kinds    counter, gauge or histogram, by the name of the metric
    helps    its help text
    samples  values by the name of the time series and its labels
    """

    kinds: dict[str, str]
    helps: dict[str, str]
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum over the time series that have these labels and maybe others."""
        own = (item for item in self.samples.items() if item[0][0] == name)
        return math.fsum(value for (_, has), value in own if labels.items() <= has)

    def labels(self, name: str, label: str) -> set[str]:
        return {dict(has)[label] for each, has in self.samples if each == name}


def get(
    address: str, path: str = "/metrics", *, tls: ssl.SSLContext | None = None, **headers: str
) -> tuple[int, str, str]:
    """Return status, content type and text of what is at a path."""
    connection = http.client.HTTPConnection(address, timeout=30)
    if tls is not None:
        connection = http.client.HTTPSConnection(address, timeout=30, context=tls)
    with closing(connection):
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()


def scrape(address: str, *, tls: ssl.SSLContext | None = None) -> Scrape:
    """Read the metrics once; a time series that comes twice is refused."""
    status, _, text = get(address, tls=tls)
    assert status == 200, text
    told = Scrape({}, {}, {})
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        told.kinds[name], told.helps[name] = family.type, family.documentation
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in told.samples, key
            told.samples[key] = sample.value
    return told
