"""What the engine refuses before it queues anything, each with a line that says why."""

from typing import Any

from tocsin.core.errors import SpecError
from tocsin.core.requests import Request
from tocsin.engine.config import EngineConfig


def validate(request: Request, config: EngineConfig, vocab_size: int) -> None:
    """Refuse a request that can never be served.

    Raises:
        SpecError: it is empty, too long, or holds token ids or settings that do not exist.
    """
    prompt = len(request.prompt_ids)
    if not request.request_id:
        raise SpecError("request: request_id is empty, expected a unique text; give it an id")
    if prompt == 0:
        raise SpecError("request: prompt_ids is empty, expected at least one token; send a prompt")
    if request.max_new_tokens < 1:
        raise SpecError(
            f"request: max_new_tokens is {request.max_new_tokens}, expected at least 1; raise it"
        )
    if prompt + request.max_new_tokens > config.max_model_len:
        raise SpecError(
            f"request: {prompt} prompt tokens and max_new_tokens {request.max_new_tokens} make "
            f"{prompt + request.max_new_tokens}, expected at most {config.max_model_len}; "
            "shorten the prompt or ask for fewer tokens"
        )
    if len(request.delivered) > request.max_new_tokens:
        raise SpecError(
            f"request: {len(request.delivered)} tokens are delivered, expected at most "
            f"max_new_tokens ({request.max_new_tokens}); correct one of them"
        )
    for token in (*request.prompt_ids, *request.delivered):
        # A bool is an int, and 1.0 equals 1: neither is a token id.
        if type(token) is not int or not 0 <= token < vocab_size:
            raise SpecError(
                f"request: token id is {token!r}, expected an integer from 0 to {vocab_size - 1}; "
                "use the tokenizer of the served model"
            )
    _validate_sampling(request)


def _validate_sampling(request: Request) -> None:
    sampling = request.sampling
    if not 0.0 <= sampling.temperature < float("inf"):
        raise SpecError(
            f"request: temperature is {sampling.temperature}, expected 0 or more; correct it"
        )
    if not 0.0 < sampling.top_p <= 1.0:
        raise SpecError(f"request: top_p is {sampling.top_p}, expected over 0 and up to 1; fix it")
    if sampling.top_k < -1:
        raise SpecError(
            f"request: top_k is {sampling.top_k}, expected -1 or 0 (off) or a count; correct it"
        )


def refuse_unsupported(model_config: Any, config: EngineConfig) -> None:
    """Refuse a model whose attention the engine does not have.

    Raises:
        SpecError: sliding windows shorter than a request may be, or capped scores.
    """
    window = getattr(model_config, "sliding_window", None)
    kinds = set(getattr(model_config, "layer_types", None) or ())
    slides = window is not None and window < config.max_model_len
    if slides and (not kinds or "sliding_attention" in kinds):
        raise SpecError(
            f"engine: the model attends to a window of {window} tokens, expected full attention; "
            f"lower max_model_len from {config.max_model_len} to {window}, or use another model"
        )
    if getattr(model_config, "attn_logit_softcapping", None):
        raise SpecError(
            "engine: the model caps its attention scores, expected plain attention; "
            "use another model"
        )
    longest = getattr(model_config, "max_position_embeddings", config.max_model_len)
    if config.max_model_len > longest:
        raise SpecError(
            f"engine: max_model_len is {config.max_model_len}, the model knows {longest} "
            "positions; lower it"
        )
