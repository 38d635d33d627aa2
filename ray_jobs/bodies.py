"""Bodies of the OpenAI-compatible requests, and of the errors that answer bad ones."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    model_validator,
)

from tocsin.core.requests import GREEDY_BELOW, Sampling


def _encodable(text: str) -> str:
    """Text that a tokenizer can read: JSON may escape half a character, which none can encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text without lone surrogates; character {error.start} is one, send it whole"
        ) from None
    return text


Text = Annotated[StrictStr, AfterValidator(_encodable)]


class _Body(BaseModel):
    """Frozen; an argument that is not known is refused, as OpenAI does."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TextPart(_Body):
    """A text part of a message's content."""

    type: Literal["text"]
    text: Text


class Message(_Body):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: Text | list[TextPart]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """Role and text, as chat templates take them."""
        text = self.content
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        return {"role": self.role, "content": text}


class StreamOptions(_Body):
    """What a stream carries besides the text."""

    include_usage: bool = False


class JsonSchema(_Body):
    """The schema that an answer promises to follow."""

    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(_Body):
    """Plain text, any JSON, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_where_promised(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("give json_schema exactly when type is json_schema")
        return self

    def schema_to_check(self) -> dict[str, Any] | None:
        """JSON schema to hold the answer to, None for plain text."""
        if self.json_schema is not None:
            return self.json_schema.schema_
        return {"type": "object"} if self.type == "json_object" else None


Stop = Annotated[Text, Field(min_length=1)]


class _Generation(_Body):
    """What both kinds of requests share; what is not supported is refused unless it is off."""

    model: str
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=-1, ge=-1)
    seed: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    ignore_eos: bool = False
    n: Literal[1] = 1
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    logit_bias: None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] = 0.0

    @model_validator(mode="after")
    def _sensible_filters(self) -> "_Generation":
        if self.top_k == 0:
            raise ValueError("top_k: found 0, expected -1 (off) or at least 1")
        return self

    def stop_texts(self) -> tuple[str, ...]:
        """Texts before which the answer ends."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def sampling(self, vocab_size: int) -> Sampling:
        """How tokens are chosen, in the ranges that an engine can follow.

        Nearly no temperature is none, because logits over it overflow; a `top_k` that leaves every
        token of the vocabulary is off.
        """
        temperature = 0.0 if self.temperature < GREEDY_BELOW else self.temperature
        top_k = -1 if self.top_k >= vocab_size else self.top_k
        return Sampling(temperature, self.top_p, top_k, self.seed or 0)


class ChatBody(_Generation):
    """`POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    response_format: ResponseFormat | None = None
    logprobs: Literal[False] | None = None
    tools: None = None


class CompletionBody(_Generation):
    """`POST /v1/completions`; a prompt of token ids is a list of integers, never a ragged one."""

    prompt: Text | list[StrictInt] | list[Text]
    logprobs: None = None
    echo: Literal[False] = False
    suffix: None = None
    best_of: Literal[1] = 1

    @model_validator(mode="after")
    def _one_prompt(self) -> "CompletionBody":
        is_texts = isinstance(self.prompt, list) and isinstance(next(iter(self.prompt), None), str)
        if is_texts and len(self.prompt) > 1:
            raise ValueError(f"prompt: found {len(self.prompt)} texts, expected one")
        return self


def error_body(
    message: str, kind: str, code: str | None = None, failure_id: str | None = None
) -> dict[str, Any]:
    """An error as OpenAI clients know it, with the id of the failure behind it."""
    error = {"message": message, "type": kind, "param": None, "code": code}
    return {"error": {**error, "tocsin": {"failure_id": failure_id}}}


def validation_message(errors: Any) -> str:
    """One line of a pydantic error list: where, what was found, what was expected."""
    seen = []
    for error in errors:
        place = ".".join(str(part) for part in error["loc"] if part not in ("body",))
        found = repr(error.get("input"))
        found = found if len(found) <= 60 else found[:57] + "..."
        seen.append(f"{place or 'body'}: found {found}, expected: {error['msg']}")
    return "; ".join(seen[:4]) or "body: not understood"
