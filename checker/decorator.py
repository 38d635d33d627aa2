"""`tocsin.with_fault_check`: the checks of an operator around a function of your own."""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from tocsin.checker.inspect import build, fields_of, judge, record_of, required
from tocsin.core.errors import CheckFailed, ContractError
from tocsin.core.terms import Layer, Operator

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class ChecksSkipped(UserWarning):
    """Checks did not run, and why."""


def with_fault_check(
    operator: str, layers: Iterable[str] | None = None
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Check every call of a function as an operator; stand-alone use only.

    Arguments are bound to the operator's fields by name and the result to its output. Under
    autograd the checks are skipped, with one `ChecksSkipped` warning a function: they are for
    inference. Inside an engine use `tocsin.attach`, which holds tokens back instead of raising.

    Args:
        operator: one of the operators of `tocsin.inspect`.
        layers: layers to run, all when None.

    Raises:
        ContractError: on decoration: an unknown operator or layer, or a function without a
            parameter for a field that the operator needs. On a call: `CheckFailed`.
    """
    record = record_of(operator)
    chosen = None if layers is None else tuple(str(layer) for layer in layers)
    unknown = sorted(set(chosen or ()) - {str(layer) for layer in Layer})
    if unknown:
        raise ContractError(
            f"with_fault_check: found layer {', '.join(unknown)}, known are "
            f"{', '.join(Layer)}; correct the name"
        )
    known, from_result = fields_of(record), _RESULTS.get(record.operator, ("output",))

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        signature = inspect.signature(function)
        _must_offer(function, signature, set(required(record)) - set(from_result))
        said = False

        @functools.wraps(function)
        def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            nonlocal said
            result = function(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            fields = {**_flat(bound, signature), **_results(record.operator, result)}
            fields = {name: value for name, value in fields.items() if name in known}
            if _trains(fields.values()):
                if not said:
                    said = True
                    warnings.warn(
                        f"{_name(function)}: autograd is on, its checks are skipped, expected "
                        "inference; call it under torch.no_grad() to have it checked",
                        ChecksSkipped,
                        stacklevel=2,
                    )
                return result
            verdict = judge(build(operator, fields), chosen)
            if not verdict.ok:
                raise CheckFailed(verdict.findings)
            return result

        return checked

    return decorate


_RESULTS: Mapping[Operator, tuple[str, ...]] = {
    Operator.TOKENIZER_OUTPUT: ("input_ids", "attention_mask", "position_ids"),
    Operator.ROPE: ("q_out", "k_out"),
    Operator.ATTENTION: ("output", "lse"),
    Operator.KV_UPDATE: (),  # it writes in place: the caches are looked at after the call
    Operator.LOGITS: ("logits",),
    Operator.LOGIT_PROCESSOR: ("after",),
    Operator.SAMPLER: ("token_ids",),
    Operator.STRUCTURED_OUTPUT: ("text",),
}
"""Fields that a function's result fills; `output` where nothing else is said."""


def _results(operator: Operator, result: Any) -> dict[str, Any]:
    """A result as fields: by name from a mapping, in order from a tuple."""
    names = _RESULTS.get(operator, ("output",))
    if isinstance(result, Mapping):
        return {name: result[name] for name in names if name in result}
    values = result if isinstance(result, tuple) else (result,)
    return dict(zip(names, values, strict=False))


def _flat(bound: inspect.BoundArguments, signature: inspect.Signature) -> dict[str, Any]:
    """Arguments by name, those caught by `**kwargs` included."""
    fields: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            fields.update(value)
        else:
            fields[name] = value
    return fields


def _must_offer(function: Any, signature: inspect.Signature, needed: set[str]) -> None:
    """A function that can never be checked is refused when it is decorated."""
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    lacking = sorted(needed - set(signature.parameters))
    if lacking and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise ContractError(
            f"{_name(function)}: has no parameter {', '.join(lacking)}, expected one for each "
            "field that the operator needs; rename the parameters"
        )


def _trains(values: Iterable[Any]) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(value, Tensor) and value.requires_grad for value in values
    )


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", function))
