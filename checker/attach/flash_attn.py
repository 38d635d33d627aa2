"""flash-attn's functions under guard: inputs checked before the launch, one owner, a way out.

What a guard adds to a launch: the checks on its inputs (a bad cu_seqlens or block table never
reaches the kernel), a lock so that what was checked is what is launched, the memory watermark, the
checks of one sequence of the output in turn, and a breaker that moves to PyTorch's own attention
after repeated failures. The checks here read device memory: they stand between host and launch.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Final

from torch import Tensor

from tocsin.checker.attach import flash_sdpa
from tocsin.checker.attach.flash_attn_table import FUNCTIONS
from tocsin.checker.attach.flash_views import VIEWS, View
from tocsin.checker.breaker import Breaker
from tocsin.checker.contract import checks_for
from tocsin.checker.finding import make_finding
from tocsin.checker.varlen import VarlenLock
from tocsin.checker.watermark import REASON, Level, Watermark
from tocsin.core.calls import Call
from tocsin.core.errors import BackendError, CheckFailed, ContractError
from tocsin.core.terms import Operator
from tocsin.core.verdict import Finding

Kernel = Callable[..., Any]

PRIMARY, FALLBACK = "flash", "sdpa"
_ESSENTIAL = frozenset({"memory", "state"})
_LSE_FLAGS = ("return_attn_probs", "return_softmax_lse")
_STAND_INS: Final[Mapping[str, Kernel]] = {name: getattr(flash_sdpa, name) for name in FUNCTIONS}


class GuardedKernel:
    """One function of flash-attn that is checked before it is launched.

    Args:
        name: its name in flash-attn; the parameters of a call are those of that version which
            `flash_attn_signatures.json` names. Only what differs from a default is handed on, so
            an older kernel that lacks a parameter works until somebody uses it.
        kernel: the function, or anything that is called alike.
        breaker: chain `("flash", "sdpa")`; None: one of its own.
        watermark: fed by whoever reads free memory; None: memory is not looked at.
        catches: exceptions of the kernel that count as its failure.

    Attributes:
        degraded: the label of the last answer: empty where the kernel itself made it.

    Raises:
        ContractError: an unknown name.
    """

    def __init__(
        self,
        name: str,
        kernel: Kernel,
        *,
        breaker: Breaker | None = None,
        watermark: Watermark | None = None,
        lock: VarlenLock | None = None,
        catches: tuple[type[Exception], ...] = (RuntimeError, BackendError),
    ) -> None:
        """Nothing is launched yet."""
        if name not in VIEWS:
            raise ContractError(
                f"flash-attn: found function {name!r}, known are {', '.join(VIEWS)}; correct it"
            )
        self.breaker = breaker or Breaker((PRIMARY, FALLBACK))
        self.lock = lock or VarlenLock()
        self.degraded: tuple[str, ...] = ()
        self._name = name
        self._stand_in = _STAND_INS[name]
        self._signature = inspect.signature(self._stand_in)
        self._kernel = kernel
        self._watermark = watermark
        self._catches = catches
        self._launches = 0
        functools.update_wrapper(self, self._stand_in)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The attention of this function, from the kernel or, failing that, from PyTorch.

        Raises:
            CheckFailed: an input is wrong; nothing was launched. Or the output is, on both ways.
            ContractError: another thread owns or edited the metadata.
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        try:
            view = VIEWS[self._name](arguments)
        except (AttributeError, TypeError, ValueError, IndexError) as error:
            raise ContractError(
                f"{self._name}: {error}; expected the shapes that its docstring names"
            ) from error
        held = nullcontext(None) if view.metadata is None else self.lock.hold(view.metadata)
        with held as lock:
            if findings := _found(view.inputs, tight=self._tight()):
                raise CheckFailed(findings)
            if view.whole.q is not None and view.whole.q.numel() == 0:
                return self._stand_in(**arguments)  # an empty batch is a defined answer
            return self._launch(view, lock, arguments)

    def _launch(self, view: View, lock: VarlenLock | None, arguments: Mapping[str, Any]) -> Any:
        """The kernel while it may be trusted, PyTorch's attention otherwise."""
        self._heed_memory()
        self._launches += 1
        if self.breaker.choose() == PRIMARY:
            if lock is not None:
                lock.launch()  # what is launched is what was checked
            try:
                result = self._kernel(*self._required(arguments), **self._chosen(arguments))
            except self._catches as error:
                self.breaker.failed(PRIMARY, f"{type(error).__name__}: {error}")
            else:
                if not self._judge(view, result, arguments):
                    self.breaker.succeeded(PRIMARY)
                    self.degraded = ()
                    return result
                self.breaker.failed(PRIMARY, "its output was found wrong")
        result = self._stand_in(**arguments)
        if findings := self._judge(view, result, arguments):
            raise CheckFailed(findings)
        self.degraded = self.breaker.degraded(FALLBACK)
        return result

    def _required(self, arguments: Mapping[str, Any]) -> list[Any]:
        parameters = self._signature.parameters
        return [arguments[n] for n, one in parameters.items() if one.default is one.empty]

    def _chosen(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Optional arguments that differ from their defaults."""
        chosen = {}
        for name, one in self._signature.parameters.items():
            value = arguments[name]
            if one.default is one.empty or value is one.default:
                continue
            if isinstance(value, Tensor) or value != one.default:
                chosen[name] = value
        return chosen

    def _judge(self, view: View, result: Any, arguments: Mapping[str, Any]) -> tuple[Finding, ...]:
        """What the checks say of the output: its form and numbers, and one sequence in full."""
        wants_lse = any(arguments.get(flag) for flag in _LSE_FLAGS)
        output, lse = (result[0], result[1]) if wants_lse else (result, None)
        view.whole.output = view.shaped(output)
        tight = self._tight()
        findings = _found((view.whole,), tight=tight, whole=True)
        if findings or tight or not view.rows:
            return findings
        sampled = view.row(self._launches % view.rows, output, lse)
        return () if sampled is None else _found((sampled,), tight=False)

    def _tight(self) -> bool:
        return self._watermark is not None and self._watermark.level is Level.ESSENTIAL

    def _heed_memory(self) -> None:
        if self._watermark is None:
            return
        if self._watermark.level >= Level.DEGRADE:
            self.breaker.force(REASON, FALLBACK)
        else:
            self.breaker.unforce(REASON)


class GuardedVarlen(GuardedKernel):
    """`flash_attn_varlen_func` under guard: the function that serving engines launch."""

    def __init__(self, kernel: Kernel, **options: Any) -> None:
        """See `GuardedKernel`."""
        super().__init__("flash_attn_varlen_func", kernel, **options)


class GuardedFlash:
    """All of flash-attn's functions that a module offers, with one breaker, lock and watermark.

    Each is an attribute under its own name: `GuardedFlash(flash_attn).flash_attn_func(q, k, v)`.

    Attributes:
        breaker: of all functions together: they are one kernel.
        skipped: function → why it is not guarded.
    """

    def __init__(
        self,
        module: Any,
        *,
        breaker: Breaker | None = None,
        watermark: Watermark | None = None,
        lock: VarlenLock | None = None,
        catches: tuple[type[Exception], ...] = (RuntimeError, BackendError),
    ) -> None:
        """Wrap what is there.

        Args:
            module: `flash_attn`, or an object with functions of the same names.

        Raises:
            ContractError: it offers none of them.
        """
        self.breaker = breaker or Breaker((PRIMARY, FALLBACK))
        self.lock = lock or VarlenLock()
        self.skipped: dict[str, str] = {}
        self._guarded: dict[str, GuardedKernel] = {}
        for name in FUNCTIONS:
            kernel = getattr(module, name, None)
            if kernel is None:
                self.skipped[name] = "this version of flash-attn does not offer it"
                continue
            self._guarded[name] = GuardedKernel(
                name,
                kernel,
                breaker=self.breaker,
                watermark=watermark,
                lock=self.lock,
                catches=catches,
            )
        if not self._guarded:
            raise ContractError(
                f"flash-attn: found none of {', '.join(FUNCTIONS)}; pass the flash_attn module"
            )

    def __getattr__(self, name: str) -> GuardedKernel:
        """The guarded function of that name."""
        guarded = self.__dict__.get("_guarded", {})
        if name in guarded:
            return guarded[name]  # type: ignore[no-any-return]
        raise AttributeError(f"GuardedFlash has no {name!r}; it guards {', '.join(guarded)}")


def _found(calls: tuple[Call, ...], *, tight: bool, whole: bool = False) -> tuple[Finding, ...]:
    """What the checks say of these records.

    Args:
        tight: memory is short: only what memory and state need.
        whole: an output of all rows is there: only its form and numbers are looked at, since the
            arithmetic of all of it would cost a second attention.
    """
    found: list[Finding] = []
    for call in calls:
        for unit in checks_for(call.operator):
            if tight and str(unit.layer) not in _ESSENTIAL:
                continue
            if not _applies(unit.id, call.operator, whole):
                continue
            ratio = unit(call)
            if ratio.numel() and not bool((ratio <= 1.0).all()):
                found.append(make_finding(unit, call.operator, float(ratio.amax())))
    return tuple(found)


def _applies(check: str, operator: Operator, whole: bool) -> bool:
    if operator is Operator.KV_UPDATE:
        return check in _OF_PLACES
    if operator is Operator.ATTENTION:
        # The mask of one row is made here from the call's own options: it cannot be a wrong one.
        return check in _OF_THE_WHOLE if whole else check != "numerical.attention_mask"
    return True


_OF_PLACES = frozenset({"memory.tensor_contract", "state.kv_shape", "state.slot_mapping"})
"""What can be said of a cache before a launch; the others compare with what it has written."""

_OF_THE_WHOLE = frozenset({"memory.tensor_contract", "numerical.finite"})
