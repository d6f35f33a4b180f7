"""The user's own function: found by its name, called with an array or a torch tensor."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire._arrays import to_array
from gradwire.cli.check_cases import Memory
from gradwire.cli.exits import INVALID, CommandError

Array = NDArray[Any]
Shape = tuple[int, ...]


class CandidateError(Exception):
    """What the function did other than return an array of the right kind."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A function (gradient, output_shape) -> result, of NumPy arrays or of torch tensors."""

    function: Callable[[Any, Shape], Any]
    torch: bool

    def __call__(self, memory: Memory, output_shape: Shape) -> Array:
        """Return its result; raise CandidateError where that is none, and where it writes."""
        base = memory.base.copy()
        given = Memory(base, memory.shape, memory.strides)
        try:
            # Infinities and NaN are part of the cases, and no reason to warn.
            with np.errstate(all="ignore"):
                result = self.function(_tensor(given) if self.torch else given.view(), output_shape)
        except (Exception, SystemExit) as error:
            words = " ".join(str(error).split())
            raise CandidateError(f"it raised {type(error).__name__}: {words}") from error
        if base.tobytes() != memory.base.tobytes():
            raise CandidateError("it wrote to its argument")
        try:
            array = to_array(result)
        except TypeError:
            array = np.array(None)
        if array.dtype == object:
            raise CandidateError(f"it returned {type(result).__name__}, no array of numbers")
        if array.shape != output_shape:
            raise CandidateError(f"it returned shape {array.shape}; {output_shape} was asked for")
        if array.dtype != base.dtype:
            raise CandidateError(f"it returned {array.dtype}; {base.dtype} was given")
        return array.copy()


def load(name: str, *, torch: bool) -> Candidate:
    """Find "module:function" or "file.py:function", from the current folder too."""
    place, separator, attribute = name.rpartition(":")
    if not separator or not place or not attribute:
        message = f"{name!r} is no function; give module:function, or file.py:function"
        raise CommandError(message, code=INVALID)
    if torch and importlib.util.find_spec("torch") is None:
        raise CommandError("--torch: PyTorch is not installed here: pip install torch")
    module = _module(place)
    function: Any = module
    for part in attribute.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        kind = "nothing" if function is None else type(function).__name__
        raise CommandError(f"{name}: {attribute} is {kind}; a function is needed", code=INVALID)
    return Candidate(function, torch)


def _module(place: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert spec is not None  # noqa: S101 (the ending is known)
        assert spec.loader is not None  # noqa: S101 (likewise)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        message = f"{place} cannot be imported: {type(error).__name__}: {error}"
        raise CommandError(message, code=INVALID) from error
    finally:
        sys.path.remove(str(Path.cwd()))
    return module


def _tensor(memory: Memory) -> Any:
    """Lay a torch tensor over the memory."""
    torch = importlib.import_module("torch")
    base = memory.base
    if str(base.dtype) == "bfloat16":
        # NumPy's name for it is unknown to torch.
        flat = torch.from_numpy(base.view(np.int16)).view(torch.bfloat16)
    else:
        flat = torch.from_numpy(base)
    return flat.as_strided(memory.shape, memory.strides)
