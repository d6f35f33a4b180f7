"""Whether and where traces and metrics are exported; pure, without OpenTelemetry.

The setting otlp_endpoint turns both on; without it the variables that OpenTelemetry specifies do.
Either way OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER and OTEL_METRICS_EXPORTER can turn them off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Signal = Literal["traces", "metrics"]

PROTOCOL = "http/protobuf"


@dataclass(frozen=True, slots=True)
class Export:
    """How one signal is exported.

    endpoint  full URL; None leaves it to the exporter, which reads the variables
    asked     whether the setting asks for it, and not only the environment
    """

    endpoint: str | None
    asked: bool


def export_of(signal: Signal, endpoint: str, environment: Mapping[str, str]) -> Export | None:
    """Return how a signal is exported; None where it is not.

    Raises ValueError where a protocol is asked for that this server does not speak.
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
    full = f"{endpoint.rstrip('/')}/v1/{signal}" if endpoint else None
    return Export(full, asked=bool(endpoint))
