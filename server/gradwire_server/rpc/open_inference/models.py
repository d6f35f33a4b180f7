"""Models: every operator, and the configurations that `--model` names."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gradwire import ops
from gradwire_server.config.models import NamedModel, unnamed
from gradwire_server.engine import NUMERICS_VERSION
from gradwire_server.errors import UnknownModelError
from gradwire_server.observability.recording import Phases

INPUT, OUTPUT, OUTPUT_SHAPE = "x", "y", "output_shape"
PLATFORM = "gradwire"
# Names of a call's duration, and of its phases in the order of Phases.seconds.
_DURATIONS = ("success", "compute_input", "queue", "compute_infer", "compute_output")


class Model:
    """A model, and the statistics of its calls.

    named  datatype, dims and attributes that requests leave out
    """

    def __init__(self, named: NamedModel) -> None:
        self.named = named
        self._succeeded = self._failed = self._last_ms = 0
        self._seconds, self._failed_s = [0.0] * len(_DURATIONS), 0.0

    def note(self, phases: Phases, duration_s: float, *, succeeded: bool) -> None:
        """Count a call; phases of calls that failed are not counted."""
        if not succeeded:
            self._failed += 1
            self._failed_s += duration_s
            return
        self._succeeded += 1
        self._last_ms = time.time_ns() // 1_000_000
        spent = (duration_s, *phases.seconds.values())
        self._seconds = [sum(each) for each in zip(self._seconds, spent, strict=True)]

    def statistics(self) -> dict[str, Any]:
        """Return the fields of ModelStatistics."""
        count = self._succeeded
        durations = {"fail": {"count": self._failed, "ns": int(1e9 * self._failed_s)}}
        for name, seconds in zip(_DURATIONS, self._seconds, strict=True):
            durations[name] = {"count": count, "ns": int(1e9 * seconds)}
        return {
            "name": self.named.name,
            "version": NUMERICS_VERSION,
            "last_inference": self._last_ms,
            "inference_count": count,
            "execution_count": count,
            "inference_stats": durations,
        }

    def metadata(self) -> dict[str, Any]:
        """Return the fields of ModelMetadataResponse."""
        x, y = (
            {"name": n, "datatype": self.named.datatype, "shape": s} for n, s in self._tensors()
        )
        told = {"name": self.named.name, "versions": [NUMERICS_VERSION], "platform": PLATFORM}
        return {**told, "inputs": [x], "outputs": [y]}

    def config(self) -> dict[str, Any]:
        """Return the fields of ModelConfig."""
        data_type = f"TYPE_{self.named.datatype}"
        x, y = ({"name": n, "data_type": data_type, "dims": s} for n, s in self._tensors())
        told = {"name": self.named.name, "platform": PLATFORM, "backend": PLATFORM}
        return {**told, "input": [x], "output": [y]}

    def _tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return names and sizes of input and output, -1 for any size."""
        dims = self.named.dims
        return [(INPUT, dims), (OUTPUT, self.named.output_shape or (-1,) * len(dims))]


class Models(dict[str, Model]):
    """All models, by name."""

    def __init__(self, named: Mapping[str, NamedModel]) -> None:
        every = (*map(unnamed, ops.OPERATORS), *named.values())
        super().__init__({each.name: Model(each) for each in every})

    def find(self, name: str, version: str) -> Model:
        """Return a model; raise UnknownModelError if there is none."""
        model = self.get(name)
        if model is None:
            raise UnknownModelError(
                f"model_name: {name!r} is not a model of this server; there are {', '.join(self)}"
            )
        if version not in {"", NUMERICS_VERSION}:
            raise UnknownModelError(
                f"model_version: {name} has no version {version!r}; give {NUMERICS_VERSION}, the "
                "version of its numerics, or none"
            )
        return model

    def some(self, name: str, version: str) -> list[Model]:
        """Return a model, or all for an empty name."""
        return [self.find(name, version)] if name else list(self.values())
