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
from gradwire_server.observability.definitions import Phase
from gradwire_server.observability.recording import Phases

INPUT, OUTPUT, OUTPUT_SHAPE = "x", "y", "output_shape"
PLATFORM = "gradwire"
# Phases of a call, by the names that the protocol has for them.
_PHASES: dict[str, Phase] = {
    "queue": "queue",
    "compute_input": "receive",
    "compute_infer": "compute",
    "compute_output": "send",
}


class Model:
    """A model, and the statistics of its calls.

    named   datatype, dims and attributes that requests leave out
    strict  whether requests must have these datatype and dims
    """

    def __init__(self, named: NamedModel, *, strict: bool) -> None:
        self.named, self.strict = named, strict
        self._count, self._ns = Counter[str](), Counter[str]()
        self._last_ms = 0

    def note(self, phases: Phases, duration_s: float, *, succeeded: bool) -> None:
        """Count a call; phases of calls that failed are not counted."""
        spent = {"success" if succeeded else "fail": duration_s}
        if succeeded:
            self._last_ms = time.time_ns() // 1_000_000
            spent |= {name: phases.seconds[phase] for name, phase in _PHASES.items()}
        for name, seconds in spent.items():
            self._count[name] += 1
            self._ns[name] += int(seconds * 1e9)

    def metadata(self) -> dict[str, Any]:
        """Return the fields of ModelMetadataResponse."""
        named = self.named
        x, y = ({"name": n, "datatype": named.datatype, "shape": s} for n, s in self._tensors())
        told = {"name": named.name, "versions": [NUMERICS_VERSION], "platform": PLATFORM}
        return {**told, "inputs": [x], "outputs": [y]}

    def config(self) -> dict[str, Any]:
        """Return the fields of ModelConfig."""
        named, data_type = self.named, f"TYPE_{self.named.datatype}"
        x, y = ({"name": n, "data_type": data_type, "dims": s} for n, s in self._tensors())
        told = {"name": named.name, "platform": PLATFORM, "backend": PLATFORM}
        return {**told, "input": [x], "output": [y]}

    def _tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return names and sizes of input and output, -1 for any size."""
        dims = self.named.dims
        return [(INPUT, dims), (OUTPUT, self.named.output_shape or (-1,) * len(dims))]

    def index(self) -> dict[str, Any]:
        """Return the fields of a ModelIndex."""
        return {"name": self.named.name, "version": NUMERICS_VERSION, "state": "READY"}

    def statistics(self) -> dict[str, Any]:
        """Return the fields of ModelStatistics."""
        count, ns = self._count, self._ns
        names = ("success", "fail", *_PHASES)
        return {
            "name": self.named.name,
            "version": NUMERICS_VERSION,
            "last_inference": self._last_ms,
            "inference_count": count["success"],
            "execution_count": count["success"],
            "inference_stats": {each: {"count": count[each], "ns": ns[each]} for each in names},
        }


class Models(dict[str, Model]):
    """All models, by name."""

    def __init__(self, named: Mapping[str, NamedModel]) -> None:
        super().__init__({name: Model(unnamed(name), strict=False) for name in ops.OPERATORS})
        self.update({name: Model(each, strict=True) for name, each in named.items()})

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
