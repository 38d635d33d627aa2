"""The check of whole requests: the verdict of each property, over columns of tokens."""

from functools import cached_property

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from tocsin.chaos.scale.golden import Knowledge
from tocsin.chaos.scale.grams import ForeignKeys
from tocsin.chaos.scale.lifecycle import OK, judge_endings
from tocsin.chaos.scale.summary import NO_GOLDEN
from tocsin.chaos.scale.tally import CANARY, DUPLICATE, GOLDEN, STREAM, Mask, Tallies
from tocsin.chaos.scale.whole import FAR, Floats, Ints, Whole, mask_of
from tocsin.chaos.triage import Category, ForeignIndex, Triage, triage


class Judge:
    """Judges whole requests by what is known of a run; made once a process."""

    def __init__(self, known: Knowledge) -> None:
        """Index what belongs to each prompt."""
        self.known = known
        self._foreign = ForeignKeys(known.golden)
        self._texts = pa.array([answer.text for answer in known.golden.answers], pa.string())
        self._finishes = pa.array(
            [answer.finish_reason for answer in known.golden.answers], pa.string()
        )

    def endings(self, tally: Tallies, whole: Whole) -> None:
        """The properties of endings, where no row of 56 bytes tells them."""
        judge_endings(
            tally,
            whole.outcome_R,
            whole.ints("terminals"),
            mask_of(pc.not_equal(whole.column("finish_reason"), "")),
            whole.t_end_ns_R,
            self.known.aborted_ns,
            whole.id_of,
        )

    def tokens(self, tally: Tallies, whole: Whole) -> None:
        """The properties of tokens."""
        tally[DUPLICATE].checked += int(np.count_nonzero(whole.length_R))
        tally[DUPLICATE].add(
            whole.repeated, lambda row: (whole.id_of(row), "an index arrived more than once")
        )
        first = whole.arrived.first_difference(self.known.golden, whole.rank_R)
        self._golden(tally, whole)
        self._stream(tally, whole, first)
        self._canary(tally, whole, first)

    def _golden(self, tally: Tallies, whole: Whole) -> None:
        """`golden.tokens`: completed honest answers are golden, by index."""
        asked = whole.honest_R & (whole.outcome_R == OK)
        has = whole.rank_R >= 0
        tally[GOLDEN].missing(NO_GOLDEN, int(np.count_nonzero(asked & ~has)))
        asked &= has
        tally[GOLDEN].checked += int(np.count_nonzero(asked))
        tokens = whole.by_index
        first = tokens.first_difference(self.known.golden, whole.rank_R)
        length = np.zeros(whole.count, np.int64)
        length[has] = self.known.golden.length_P[whole.rank_R[has]]
        wrong = asked & ((first != FAR) | (tokens.length_R < length) | self._other_finish(whole))
        # Only near ties can be let pass: there the rule for one request decides.
        near = wrong & self._near(whole, first)
        for row in np.flatnonzero(near):
            if self._triage(whole, int(row)).category is Category.TIE_FLIP:
                wrong[row] = False
                tally[GOLDEN].ties += 1
        tally[GOLDEN].add(wrong, lambda row: (whole.id_of(row), self._in_words(whole, row)))

    def _stream(self, tally: Tallies, whole: Whole, first: Ints) -> None:
        """`stream.prefix`: what arrived was at every moment the beginning of one answer."""
        asked = whole.honest_R & (whole.length_R > 0)
        tally[STREAM].checked += int(np.count_nonzero(asked))
        done = whole.outcome_R == OK
        usage = whole.ints("usage_tokens")
        broken = whole.out_of_order | whole.after_end
        broken |= done & (usage >= 0) & (usage != whole.length_R)
        broken |= done & whole.parts_differ
        began_wrong = ~done & (first != FAR) & ~self._near(whole, first)
        tally[STREAM].add(
            asked & (broken | began_wrong),
            lambda row: (
                whole.id_of(row),
                "indices, times, count and text are not those of one stream"
                if broken[row]
                else f"broken off after a token at index {first[row]} that is not golden",
            ),
        )

    def _canary(self, tally: Tallies, whole: Whole, first: Ints) -> None:
        """`isolation.canary`: nothing that belongs to another prompt alone."""
        has_text = mask_of(pc.not_equal(whole.column("text"), ""))
        asked = whole.honest_R & ((whole.length_R > 0) | has_text)
        tally[CANARY].checked += int(np.count_nonzero(asked))
        holds: dict[int, str] = {}
        suspects = asked & (first != FAR)
        if suspects.any():
            owners = self._foreign.owners(
                whole.token_N[suspects[whole.row_N]],
                whole.length_R[suspects],
                whole.rank_R[suspects],
            )
            names = self.known.golden.names
            for row, owner in zip(np.flatnonzero(suspects), owners, strict=True):
                if owner >= 0:
                    holds[int(row)] = f"text of prompt {names[owner]}"
        same = pc.equal(whole.text, self._texts.take(whole.rank_or_null))
        for row in np.flatnonzero(asked & ~mask_of(pc.fill_null(same, fill_value=False))):
            if word := self._foreign_word(whole, int(row)):
                holds[int(row)] = word
        wrong = np.zeros(whole.count, np.bool_)
        wrong[list(holds)] = True
        tally[CANARY].add(wrong, lambda row: (whole.id_of(row), f"holds {holds[row]}"))

    def _foreign_word(self, whole: Whole, row: int) -> str:
        """The canary word of another prompt in an answer; empty when there is none."""
        text, prompt_id = str(whole.text[row].as_py()), whole.text_of("prompt_id", row)
        golden = self.known.answers.get(prompt_id)
        if golden is not None and golden.text.startswith(text):
            return ""
        text, allowed = text.casefold(), golden.text.casefold() if golden else ""
        for owner, word in self.known.words.items():
            if owner != prompt_id and word in text and word not in allowed:
                return f"canary {word!r} of prompt {owner}"
        return ""

    def _other_finish(self, whole: Whole) -> Mask:
        """Rows that say that they ended another way than golden."""
        said = whole.column("finish_reason")
        other = pc.and_(
            pc.not_equal(said, ""), pc.not_equal(said, self._finishes.take(whole.rank_or_null))
        )
        return mask_of(pc.fill_null(other, fill_value=False))

    def _near(self, whole: Whole, first: Ints) -> Mask:
        """Rows whose first difference numerics alone may explain."""
        lenient = whole.degraded_R if self.known.exact else np.ones(whole.count, np.bool_)
        return lenient & (self._margin(whole, first) <= self.known.tau)

    def _margin(self, whole: Whole, first: Ints) -> Floats:
        """Golden margin at a place of each row; NaN where there is none."""
        golden = self.known.golden
        margin = np.full(whole.count, np.nan)
        known = np.flatnonzero(whole.rank_R >= 0)
        inside = known[first[known] < golden.length_P[whole.rank_R[known]]]
        margin[inside] = golden.margins_N[golden.start_P[whole.rank_R[inside]] + first[inside]]
        return margin

    @cached_property
    def _foreign_one(self) -> ForeignIndex:
        """The same as `_foreign`, for one answer at a time."""
        return ForeignIndex(self.known.answers)

    def _triage(self, whole: Whole, row: int) -> Triage:
        return triage(
            whole.tokens_of(whole.by_index, row),
            whole.text_of("finish_reason", row),
            self.known.golden.answers[whole.rank_R[row]],
            self._foreign_one,
            self.known.tau,
        )

    def _in_words(self, whole: Whole, row: int) -> str:
        found = self._triage(whole, row)
        silent = "" if whole.degraded_R[row] else "silently "
        return f"{silent}wrong from index {found.first_index} on ({found.category}): {found.detail}"
