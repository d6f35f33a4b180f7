"""Whether and where traces and metrics are exported; pure, without OpenTelemetry.

The setting otlp_endpoint enables both; without it the variables that OpenTelemetry specifies do.
Either way OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER and OTEL_METRICS_EXPORTER can turn them off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gradwire_server.config.addresses import is_http_url

Signal = Literal["traces", "metrics"]

PROTOCOL = "http/protobuf"
EXAMPLE = "http://127.0.0.1:4318"
# Variables of the batch span processor, and the defaults that OpenTelemetry specifies.
_BATCHES = {
    "OTEL_BSP_SCHEDULE_DELAY": 5000,
    "OTEL_BSP_EXPORT_TIMEOUT": 30000,
    "OTEL_BSP_MAX_QUEUE_SIZE": 2048,
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": 512,
}


@dataclass(frozen=True, slots=True)
class Export:
    """Export of one signal.

    endpoint  full URL; None leaves it to the exporter, which reads the variables
    asked     whether the setting requests it, and not only the environment
    """

    endpoint: str | None
    asked: bool


def export_of(signal: Signal, endpoint: str, environment: Mapping[str, str]) -> Export | None:
    """Return how a signal is exported; None if it is not.

    Raises ValueError for an unsupported protocol or invalid values: exporters would report those
    with every export, or in a traceback.
    """
    name = signal.upper()
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporters = environment.get(f"OTEL_{name}_EXPORTER", "otlp").split(",")
    if "otlp" not in [each.strip() for each in exporters]:
        return None
    variables = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{name}_ENDPOINT")
    if not endpoint and not any(environment.get(variable) for variable in variables):
        return None
    for variable in (f"OTEL_EXPORTER_OTLP_{name}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = environment.get(variable)
        if protocol:
            if protocol != PROTOCOL:
                raise ValueError(f"{variable} is {protocol}; {PROTOCOL} is what this server speaks")
            break
    if not endpoint:
        _check_url(environment, variables)
    _check_numbers(environment, f"OTEL_EXPORTER_OTLP_{name}_TIMEOUT")
    if signal == "traces":
        _check_batches(environment)
    full = f"{endpoint.rstrip('/')}/v1/{signal}" if endpoint else None
    return Export(full, asked=bool(endpoint))


def _check_url(environment: Mapping[str, str], variables: tuple[str, str]) -> None:
    for variable in reversed(variables):
        url = environment.get(variable)
        if url:
            if not is_http_url(url):
                raise ValueError(f"{variable} is {url}; a URL such as {EXAMPLE} is needed")
            return


def _check_numbers(environment: Mapping[str, str], own: str) -> None:
    for variable in (own, "OTEL_EXPORTER_OTLP_TIMEOUT"):
        told = environment.get(variable)
        if told and not _is_positive(told, float):
            raise ValueError(f"{variable} is {told}; give seconds, such as 10")


def _check_batches(environment: Mapping[str, str]) -> None:
    numbers: dict[str, int] = {}
    for name, usual in _BATCHES.items():
        told = environment.get(name) or str(usual)
        if not _is_positive(told, int):
            raise ValueError(f"{name} is {told}; give an integer above 0, such as {usual}")
        numbers[name] = int(told)
    most, batch = numbers["OTEL_BSP_MAX_QUEUE_SIZE"], numbers["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"]
    if batch > most:
        raise ValueError(
            f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE is {batch}; at most OTEL_BSP_MAX_QUEUE_SIZE is "
            f"possible, which is {most}"
        )


def _is_positive(text: str, kind: type[float]) -> bool:
    try:
        return 0 < kind(text) < math.inf
    except ValueError:
        return False
