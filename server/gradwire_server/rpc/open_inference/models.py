"""Models: every operator, and the configurations that `--model` names."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradwire import ops, v1
from gradwire_server.config.models import NamedModel
from gradwire_server.engine import NUMERICS_VERSION
from gradwire_server.errors import UnknownModelError
from gradwire_server.observability.recording import Phases

INPUT, OUTPUT, OUTPUT_SHAPE = "x", "y", "output_shape"
PLATFORM = "gradwire"
DATA_TYPES: Mapping[str, v1.DataType.ValueType] = {
    "FP32": v1.DataType.DATA_TYPE_FLOAT32,
    "FP16": v1.DataType.DATA_TYPE_FLOAT16,
    "BF16": v1.DataType.DATA_TYPE_BFLOAT16,
    "FP64": v1.DataType.DATA_TYPE_FLOAT64,
}
# Phases of a call, by the names that the protocol has for them.
_PHASES = {
    "queue": "queue",
    "receive": "compute_input",
    "compute": "compute_infer",
    "send": "compute_output",
}
_SPENT = ("success", "fail", *_PHASES)


@dataclass(slots=True, eq=False)
class Counts:
    """Counts and nanoseconds of a model's calls, by outcome and phase."""

    succeeded: int = 0
    failed: int = 0
    last_ms: int = 0
    nanoseconds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SPENT, 0))

    def note(self, phases: Phases, duration_s: float, *, succeeded: bool) -> None:
        """Count a call."""
        spent = self.nanoseconds
        if not succeeded:
            self.failed += 1
            spent["fail"] += int(duration_s * 1e9)
            return
        self.succeeded += 1
        self.last_ms = time.time_ns() // 1_000_000
        spent["success"] += int(duration_s * 1e9)
        for phase, seconds in phases.seconds.items():
            spent[phase] += int(seconds * 1e9)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """One model.

    named   datatype, dims and attributes that requests leave out
    strict  whether requests must have these datatype and dims
    """

    named: NamedModel
    strict: bool
    counts: Counts = field(default_factory=Counts)

    @property
    def kind(self) -> type[ops.Operator]:
        """The operator."""
        return ops.OPERATORS[self.named.operator]

    @property
    def output_dims(self) -> tuple[int, ...]:
        """Sizes of the result, -1 for any."""
        return self.named.output_shape or (-1,) * len(self.named.dims)

    def metadata(self) -> dict[str, Any]:
        """Return the fields of ModelMetadataResponse."""
        named = self.named
        tensors = ((INPUT, named.dims), (OUTPUT, self.output_dims))
        x, y = ({"name": n, "datatype": named.datatype, "shape": dims} for n, dims in tensors)
        told = {"name": named.name, "versions": [NUMERICS_VERSION], "platform": PLATFORM}
        return {**told, "inputs": [x], "outputs": [y]}

    def config(self) -> dict[str, Any]:
        """Return the fields of ModelConfig."""
        named = self.named
        tensors = ((INPUT, named.dims), (OUTPUT, self.output_dims))
        data_type = f"TYPE_{named.datatype}"
        x, y = ({"name": n, "data_type": data_type, "dims": dims} for n, dims in tensors)
        told = {"name": named.name, "platform": PLATFORM, "backend": PLATFORM}
        return {**told, "input": [x], "output": [y]}

    def index(self) -> dict[str, Any]:
        """Return the fields of a ModelIndex."""
        return {"name": self.named.name, "version": NUMERICS_VERSION, "state": "READY"}

    def statistics(self) -> dict[str, Any]:
        """Return the fields of ModelStatistics."""
        counts = self.counts
        stats = {
            name: {
                "count": counts.failed if spent == "fail" else counts.succeeded,
                "ns": counts.nanoseconds[spent],
            }
            for spent, name in {"success": "success", "fail": "fail", **_PHASES}.items()
        }
        return {
            "name": self.named.name,
            "version": NUMERICS_VERSION,
            "inference_stats": stats,
            "last_inference": counts.last_ms,
            **dict.fromkeys(("inference_count", "execution_count"), counts.succeeded),
        }


class Models:
    """All models, by name."""

    def __init__(self, named: Mapping[str, NamedModel]) -> None:
        self._all = {name: Model(_any(kind), strict=False) for name, kind in ops.OPERATORS.items()}
        self._all |= {name: Model(each, strict=True) for name, each in named.items()}

    def get(self, name: str, version: str) -> Model:
        """Return a model; raise UnknownModelError if there is none."""
        model = self._all.get(name)
        if model is None:
            raise UnknownModelError(
                f"model_name: {name!r} is no model here; there are {', '.join(self._all)}"
            )
        if version not in {"", NUMERICS_VERSION}:
            raise UnknownModelError(
                f"model_version: {name} has no version {version!r}; give {NUMERICS_VERSION}, the "
                "version of its numerics, or none"
            )
        return model

    def chosen(self, name: str, version: str) -> list[Model]:
        """Return the model of this name; all of them for none."""
        return [self.get(name, version)] if name else list(self._all.values())


def _any(kind: type[ops.Operator]) -> NamedModel:
    """Return an operator as a model of four axes.

    The protocol asks for one rank, and most tensors have four axes.
    """
    rank = min(max(4, kind.min_rank), kind.max_rank)
    return NamedModel(kind.name, kind.name, {}, "FP32", (-1,) * rank, None)
