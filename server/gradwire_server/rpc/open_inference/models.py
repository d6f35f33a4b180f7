"""Models: every operator, and the configurations that `--model` names."""

from __future__ import annotations

import time
from collections import Counter
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
        self._calls, self._seconds = Counter[str](), Counter[str]()
        self._last_ms = 0

    def note(self, phases: Phases, duration_s: float, *, succeeded: bool) -> None:
        """Count a call; phases of calls that failed are not counted."""
        spent = [duration_s, *phases.seconds.values()] if succeeded else [duration_s]
        names = _DURATIONS if succeeded else ("fail",)
        for name, seconds in zip(names, spent, strict=True):
            self._calls[name] += 1
            self._seconds[name] += seconds  # type: ignore[assignment]
        if succeeded:
            self._last_ms = time.time_ns() // 1_000_000

    def statistics(self) -> dict[str, Any]:
        """Return the fields of ModelStatistics."""
        count, durations = self._calls["success"], ("fail", *_DURATIONS)
        return {
            "name": self.named.name,
            "version": NUMERICS_VERSION,
            "last_inference": self._last_ms,
            "inference_count": count,
            "execution_count": count,
            "inference_stats": {
                name: {"count": self._calls[name], "ns": int(1e9 * self._seconds[name])}
                for name in durations
            },
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
