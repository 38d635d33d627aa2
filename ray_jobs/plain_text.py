"""Text of a user that holds control tokens of the chat template: read as plain text, or refused.

A template is rendered to text, and that text is tokenized: what a user writes can so become the
template's own `<|im_start|>`, and with it a turn that nobody took. Here such a text is tokenized
by itself, with control tokens taken for the letters that they are written with.
"""

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any

from tocsin.core.errors import SpecError

_OPEN, _CLOSE = "\ue000", "\ue001"
"""Private-use characters: no text that means anything has them, and no template changes them."""
_MARK = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
TEMPLATE = "service.template"


class PlainText:
    """Knows the control tokens of a tokenizer, and reads conversations in which some are written.

    Attributes:
        controls: id of each control token, by its text.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Nothing is copied before it is needed."""
        self._tokenizer = tokenizer
        self._literal: Any = None
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self.controls = {str(token): int(i) for i, token in added.items() if token.special}

    def found(self, messages: Sequence[dict[str, str]]) -> tuple[str, ...]:
        """Control tokens that somebody has written into a message, each once."""
        texts = [message["content"] for message in messages]
        return tuple(one for one in self.controls if one and any(one in text for text in texts))

    def read(
        self,
        messages: Sequence[dict[str, str]],
        render: Callable[[Sequence[dict[str, str]]], str],
        tokenize: Callable[[str], tuple[int, ...]],
    ) -> tuple[int, ...]:
        """Token ids of a conversation whose control tokens are the template's, and nobody else's.

        Args:
            render: the template, from messages to one text.
            tokenize: of the template's own text.

        Raises:
            SpecError: the template does more with a text than to put it in its place, or the
                tokenizer cannot take a control token for letters.
        """
        texts = [message["content"] for message in messages]
        marked = [
            {**message, "content": f"{_OPEN}{at}{_CLOSE}"} for at, message in enumerate(messages)
        ]
        frame = render(marked)
        clean = not any(_OPEN in text or _CLOSE in text for text in texts)
        if not clean or _MARK.sub(lambda mark: texts[int(mark[1])], frame) != render(messages):
            raise self._refused(messages, "the template of this model changes the texts")
        parts = _MARK.split(frame)  # of the template, number of a text, of the template, …
        ids: list[int] = []
        for at, part in enumerate(parts):
            if at % 2:
                spoken = self._letters(texts[int(part)])
                if set(spoken) & set(self.controls.values()):
                    raise self._refused(messages, "the tokenizer of this model knows no other way")
                ids += spoken
            elif part:
                ids += tokenize(part)
        return tuple(ids)

    def _letters(self, text: str) -> list[int]:
        """Token ids of a text; a tokenizer of its own, for the setting belongs to the whole one."""
        if self._literal is None:
            self._literal = copy.deepcopy(self._tokenizer)
        given = self._literal(text, add_special_tokens=False, split_special_tokens=True)
        return [int(token) for token in given["input_ids"]]

    def _refused(self, messages: Sequence[dict[str, str]], why: str) -> SpecError:
        written = ", ".join(self.found(messages)[:4])
        return SpecError(
            f"messages: a text holds {written}, control tokens of the chat template, expected "
            f"plain text; {why}, send it without them [{TEMPLATE}]"
        )
