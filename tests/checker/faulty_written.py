"""Faults of what is held to a state that was kept: sums of the write, trusted rows, the table."""

from collections.abc import Mapping
from typing import Any

import torch

from tests.checker.changes import Fault, Place, assign, both, flip, huge_row, number_faults, on, put
from tocsin.core.terms import Operator

_WRITTEN = (Operator.ATTENTION, "decode, as written")
_LOGITS = (Operator.LOGITS, "trusted")
_EMBEDDING = (Operator.EMBEDDING, "plain")


def _key(change: Any, *arguments: Any) -> Fault:
    """A change of one number of a key that the last row may attend to."""

    def fault(call: Any) -> None:
        change(call.k[3, 0, 5], *arguments)

    return fault


def _foreign_page(call: Any) -> None:
    call.k[3, :, 8:16] = call.k[1, :, 8:16]


def _one_key_less(call: Any) -> None:
    call.mask = call.mask.clone()
    call.mask[3, ..., 30] = False


def _one_key_more(call: Any) -> None:
    call.mask = call.mask.clone()
    call.mask[1, ..., 8] = True


def _second_best(call: Any) -> None:
    """Another token wins by a hair: its logit is lifted just above the largest."""
    top = call.logits[1, 1].topk(2)
    call.logits[1, 1, top.indices[1]] = top.values[0] + 0.25 * top.values[0].abs()


def _another_likely_one(call: Any) -> None:
    """A token of the distribution, only not the one that was drawn."""
    order = call.probs[2].argsort(descending=True)
    call.token_ids[2] = order[0] if call.token_ids[2] != order[0] else order[1]


SAMPLER: Mapping[str, tuple[Place, Fault]] = {
    "another likely token": ((Operator.SAMPLER, "drawn"), _another_likely_one),
    "draw out of range": ((Operator.SAMPLER, "drawn"), lambda call: call.draws[1].add_(1)),
    "draw of no number": ((Operator.SAMPLER, "drawn"), lambda call: call.draws[1].fill_(torch.nan)),
}

FAULTS: Mapping[str, Mapping[str, tuple[Place, Fault]]] = {
    "numerical.attention_scores": {
        "sign": (_WRITTEN, _key(flip, 0)),
        "explodes": (_WRITTEN, _key(flip, 1)),
        "vanishes": (_WRITTEN, _key(put, 0.0)),
        "infinity": (_WRITTEN, _key(put, torch.inf)),
        "NaN": (_WRITTEN, _key(put, torch.nan)),
        "page of another request": (_WRITTEN, _foreign_page),
        "one key less": (_WRITTEN, _one_key_less),
        "one key more": (_WRITTEN, _one_key_more),
        "sign, beside a huge number": (_WRITTEN, both(_key(flip, 0), huge_row("k"))),
        "keys never written": (_WRITTEN, assign(key_sums=torch.zeros_like)),
    },
    "numerical.embedding_rows": {
        **{name: (_EMBEDDING, fault) for name, fault in number_faults("output").items()},
        "another word's row": (_EMBEDDING, assign(output=lambda rows: rows.roll(1, 0))),
        "one bit of the mantissa": (_EMBEDDING, on("output", flip, 12)),
    },
    "numerical.logits_winner": {
        "winner lifted": (_LOGITS, _second_best),
        "explodes": (_LOGITS, on("logits", flip, 1)),
        "infinity": (_LOGITS, on("logits", put, torch.inf)),
        "NaN": (_LOGITS, on("logits", put, torch.nan)),
        "rows swapped": (_LOGITS, assign(logits=lambda logits: logits.flip(1))),
        "winner's row changed since": (
            _LOGITS,
            lambda call: flip(call.weight[int(call.logits[1, 2].argmax())], 1),
        ),
        "hidden state explodes after the product": (_LOGITS, huge_row("hidden")),
    },
}
"""Check id → name of a fault → the valid call it starts from, and the change."""
