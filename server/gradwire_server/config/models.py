"""Named configurations of operators, which setting `model` declares."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire import ops, v1
from gradwire.errors import InvalidRequestError
from gradwire.tensors import MAX_RANK
from gradwire_server.errors import InvalidFieldError

# Names that the Open Inference Protocol has for the data types of tensors.
DATATYPES: dict[str, v1.DataType.ValueType] = {
    "FP32": v1.DataType.DATA_TYPE_FLOAT32,
    "FP16": v1.DataType.DATA_TYPE_FLOAT16,
    "BF16": v1.DataType.DATA_TYPE_BFLOAT16,
    "FP64": v1.DataType.DATA_TYPE_FLOAT64,
}
_HEAD = re.compile(r"[\s,]*([A-Za-z0-9_.-]{1,128})=([a-z0-9_]+):(?={)")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class NamedModel:
    """An operator with attributes, called by a name of its own.

    attributes    of the operator, as JSON has them
    datatype      of its tensors
    dims          of its input, -1 for any size
    output_shape  of requests that give none; None if the attributes determine it
    """

    name: str
    operator: str
    attributes: dict[str, Any]
    datatype: str
    dims: tuple[int, ...]
    output_shape: tuple[int, ...] | None

    def request(
        self, datatype: str, sizes: Sequence[int], output_shape: Any, attributes: Mapping[str, Any]
    ) -> v1.EvaluateRequest:
        """Return the request for an input, without its data.

        Operators by their own names take every datatype and rank.

        Raises InvalidFieldError if the model does not take them, or the values of the operator.
        """
        is_declared = self.name != self.operator
        taken = [self.datatype] if is_declared else list(DATATYPES)
        if datatype not in taken:
            raise InvalidFieldError(
                "input.data_type", f"{datatype!r}; {self.name} takes {', '.join(taken)}"
            )
        fits = len(sizes) == len(self.dims) and all(
            dim in {-1, size} for dim, size in zip(self.dims, sizes, strict=True)
        )
        if is_declared and not fits:
            raise InvalidFieldError(
                "input.sizes", f"{list(sizes)}; {self.name} takes {list(self.dims)}"
            )
        data_type = DATATYPES[datatype]
        descriptor = v1.TensorDescriptor(data_type=data_type, sizes=sizes)
        request = v1.EvaluateRequest(input=descriptor)
        try:
            if output_shape is not None:
                request.output.data_type = data_type
                request.output.sizes.extend(output_shape)
            operator = ops.OPERATORS[self.operator](**attributes)
        except InvalidRequestError as error:
            raise InvalidFieldError(error.field or "operator", error.description) from None
        except (TypeError, ValueError):
            text = str(output_shape)[:80]
            raise InvalidFieldError(
                "output.sizes", f"{text!r}; a list of sizes is needed"
            ) from None
        request.operator.CopyFrom(ops.to_message(operator))
        return request


def read_models(text: str) -> dict[str, NamedModel]:
    """Read NAME=OPERATOR:JSON, several of them separated by blanks.

    Returns them by name, behind the operators by their own names.

    Raises ValueError where one is malformed, unknown or given twice.
    """
    models = {operator: _unnamed(operator) for operator in ops.OPERATORS}
    at = 0
    while text[at:].strip(" ,\n\t"):
        head = _HEAD.match(text, at)
        if head is None:
            raise ValueError(f"{text[at : at + 60]!r}; NAME=OPERATOR:{{JSON}} is needed")
        name, operator = head.groups()
        if operator not in ops.OPERATORS:
            raise ValueError(
                f"{name} has operator {operator}; give one of {', '.join(ops.OPERATORS)}"
            )
        if name in models:
            raise ValueError(f"{name} names another model already; give another name")
        try:
            values, at = _DECODER.raw_decode(text, head.end())
            models[name] = _model(name, operator, values)
        except (ValueError, RecursionError, InvalidRequestError) as error:
            raise ValueError(f"{name}: {error}") from error
    return models


def _unnamed(operator: str) -> NamedModel:
    """Return an operator as a model by its own name.

    It has four axes if the operator takes so many, as most tensors have.
    """
    kind = ops.OPERATORS[operator]
    rank = min(max(4, kind.min_rank), kind.max_rank)
    return NamedModel(operator, operator, {}, "FP32", (-1,) * rank, None)


def _model(name: str, operator: str, values: dict[str, Any]) -> NamedModel:
    kind = ops.OPERATORS[operator]
    datatype, dims = values.pop("datatype", "FP32"), values.pop("dims", None)
    output_shape = values.pop("output_shape", None)
    if datatype not in DATATYPES:
        raise ValueError(f"datatype is {datatype!r}; one of {', '.join(DATATYPES)} is needed")
    dims = _sizes("dims", dims, least=-1) or _unnamed(operator).dims
    kind(**values)
    return NamedModel(
        name, operator, values, datatype, dims, _sizes("output_shape", output_shape, least=0)
    )


def _sizes(field: str, value: Any, *, least: int) -> tuple[int, ...] | None:
    """Return the sizes in a list of JSON; None for null."""
    if value is None:
        return None
    sizes: list[Any] = value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType] - mypy knows it
    sound = all(type(size) is int and least <= size < 2**63 for size in sizes)
    if not sound or not 1 <= len(sizes) <= MAX_RANK:
        raise ValueError(
            f"{field} is {value!r}; a list of 1 to {MAX_RANK} sizes from {least} on is needed"
        )
    return tuple(sizes)
