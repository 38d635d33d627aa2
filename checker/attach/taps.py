"""Forwards of a model's modules, wrapped only while somebody listens: at rest nothing is left.

A forward hook costs 2 µs a call whether or not it does something; a function in place of `forward`
costs its own frame. Modules with hooks of somebody else keep to hooks: theirs come first, and what
they change is what we look at.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from torch import nn
from torch.compiler import is_compiling

from tocsin.core.seams import Seams
from tocsin.core.terms import Operator, Phase

Forward = Callable[..., Any]
Before = Callable[[tuple[Any, ...], dict[str, Any]], None]
After = Callable[[tuple[Any, ...], dict[str, Any], Any], None]

Key = tuple[Operator, Phase]


class Kept:
    """What one look keeps for another, further inside or later."""

    def __init__(self) -> None:
        """Nothing; each is an instance's own from the first: a graph asks whether it is."""
        self.place: Any = None
        self.position_ids: Any = None
        self.x: Any = None
        self.delta: Any = None
        self.gate: Any = None
        self.up: Any = None


class _KeptByThread(Kept, threading.local):
    """A thread's own."""


class Shelf:
    """Where looks keep tensors for each other: a thread's own shelf, or that of a trace.

    Attributes:
        by_thread: the shelf of whoever asks, outside a trace.
    """

    def __init__(self) -> None:
        """Nothing is kept."""
        self.by_thread = _KeptByThread()
        self._traced = Kept()

    def now(self) -> Kept:
        """The shelf of whoever asks; a tracer cannot follow what belongs to a thread."""
        return self._traced if is_compiling() else self.by_thread


@dataclass(frozen=True, slots=True)
class Look:
    """What is done around one module's forward.

    Attributes:
        before: `(args, kwargs)`; after: `(args, kwargs, output)`; leave: also after an exception.
        forward: takes the place of the innermost forward and does all that `after` does.
        wrap: makes another forward of one; nothing where there are hooks.
    """

    before: Before | None = None
    after: After | None = None
    leave: Callable[[], None] | None = None
    forward: Forward | None = None
    wrap: Callable[[Forward], Forward] | None = None


@dataclass(slots=True, eq=False)
class _Tap:
    """One interest in a module, and what it comes to with the present listeners."""

    keys: tuple[Key, ...]
    look: Callable[[], Look | None]
    state: Callable[[], Any]


@dataclass(slots=True, eq=False)
class _Tapped:
    """One module and what stands around it now.

    Attributes:
        state: who listened when it was dressed.
        ours: the forward that took the place of `own`; None: none did.
        own: an instance's forward that was there before; None: the class's.
        hooks: take our hooks out again.
    """

    module: nn.Module
    taps: list[_Tap] = field(default_factory=list)
    state: tuple[Any, ...] = ()
    ours: Forward | None = None
    own: Forward | None = None
    hooks: list[Callable[[], None]] = field(default_factory=list)


class Taps:
    """All wrapped forwards of one model.

    Attributes:
        frozen: what is wrapped stays wrapped, whoever listens.

    Args:
        seams: whose listeners decide what is wrapped.
    """

    def __init__(self, seams: Seams) -> None:
        """Nothing is wrapped yet."""
        self._seams = seams
        self.frozen = False
        self._tapped: dict[nn.Module, _Tapped] = {}
        self._followers: list[Callable[[], None]] = []
        self._unwatch: Callable[[], None] | None = None

    def add(
        self,
        module: nn.Module,
        look: Callable[[], Look | None],
        *keys: Key,
        state: Callable[[], Any] = lambda: None,
    ) -> None:
        """Look at a module's calls while anybody listens at one of `keys`.

        Args:
            look: asked whenever the module is dressed anew; None where nothing need be done. Looks
                added first are nearest to the module's own forward.
            state: what the look depends on besides who listens: another one dresses anew.
        """
        self._tapped.setdefault(module, _Tapped(module)).taps.append(_Tap(keys, look, state))

    def follow(self, changed: Callable[[], None]) -> None:
        """Tell somebody whose calls come by another way, whenever the modules are dressed."""
        self._followers.append(changed)

    def open(self) -> None:
        """Follow the seams from now on."""
        self._unwatch = self._seams.watch(self.refresh)
        self.refresh()

    def close(self) -> None:
        """Give every module its own forward back; calling it again does nothing."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        for tapped in self._tapped.values():
            _bare(tapped)
        self._tapped, self._followers = {}, []

    def freeze(self) -> None:
        """Leave everything as it is, whoever listens: a compiler has traced it."""
        self.frozen = True

    def refresh(self) -> None:
        """Wrap what is listened to now, and nothing else."""
        if self.frozen:
            return  # a compiler has traced the model as it is: its graph asks for no other
        listening = self._seams.listening
        for tapped in self._tapped.values():
            state = tuple(
                (tap.state(), *[key in listening for key in tap.keys]) for tap in tapped.taps
            )
            if state != tapped.state:
                tapped.state = state
                _dress(tapped, listening)
        for changed in self._followers:
            changed()


def _dress(tapped: _Tapped, listening: frozenset[Key]) -> None:
    """Put the looks that are wanted now around a module."""
    wanted = [tap.look() for tap in tapped.taps if any(key in listening for key in tap.keys)]
    looks = [look for look in wanted if look is not None]
    module = tapped.module
    if not looks:
        _bare(tapped)
    elif tapped.ours is None and (tapped.hooks or _has_hooks(module)):
        _bare(tapped)
        _hook(tapped, looks)
    else:
        present = vars(module).get("forward")
        if tapped.ours is None or present is not tapped.ours:
            tapped.own = present  # somebody's wrapper: ours goes around it
        own = tapped.own
        plain = own is None
        forward: Forward = type(module).forward.__get__(module) if own is None else own
        unseen = forward
        for look in looks:
            forward = _around(forward, look, plain=plain)
            plain = False
        if isinstance(forward, FunctionType):
            # Transformers asks a model's signature which arguments it may hand over.
            forward.__dict__["__wrapped__"] = unseen
        tapped.ours = forward
        module.forward = forward


def _bare(tapped: _Tapped) -> None:
    """Take away what is ours; what somebody put around it since stays."""
    while tapped.hooks:
        tapped.hooks.pop()()
    module = tapped.module
    if tapped.ours is not None and vars(module).get("forward") is tapped.ours:
        del module.forward
        if tapped.own is not None:
            module.forward = tapped.own
    tapped.ours = tapped.own = None


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _around(forward: Forward, look: Look, *, plain: bool) -> Forward:
    """A forward with one look around it; `plain`: it is the class's own."""
    if look.forward is not None and plain:
        return look.forward
    if look.wrap is not None:
        return look.wrap(forward)
    before, after, leave = look.before, look.after, look.leave
    if leave is not None:
        return _left(forward, before, after, leave)
    if before is None and after is not None:

        def seen_after(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            after(args, kwargs, output)
            return output

        return seen_after

    def seen(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(args, kwargs)
        output = forward(*args, **kwargs)
        if after is not None:
            after(args, kwargs, output)
        return output

    return seen


def _left(
    forward: Forward, before: Before | None, after: After | None, leave: Callable[[], None]
) -> Forward:
    def left(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(args, kwargs)
        if is_compiling():  # what fails in a trace is run again without one
            output = forward(*args, **kwargs)
            leave()
        else:
            try:
                output = forward(*args, **kwargs)
            finally:
                leave()
        if after is not None:
            after(args, kwargs, output)
        return output

    return left


def _hook(tapped: _Tapped, looks: list[Look]) -> None:
    """The same by hooks, behind those that are there."""
    module = tapped.module

    def enter(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        for look in reversed(looks):
            if look.before is not None:
                look.before(args, kwargs)

    def leave(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        for look in looks:
            if look.leave is not None:
                look.leave()
            if look.after is not None and output is not None:
                look.after(args, kwargs, output)

    always = any(look.leave is not None for look in looks)
    tapped.hooks.append(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
    tapped.hooks.append(
        module.register_forward_hook(leave, with_kwargs=True, always_call=always).remove
    )
