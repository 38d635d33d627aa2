"""Reading a conversation at the front door: whoever writes control tokens into it is told of."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import Request

from tocsin.core.history import EventKind
from tocsin.ray_jobs.bodies import ChatBody
from tocsin.ray_jobs.prompting import Prompting

Tell = Callable[[EventKind, str, Mapping[str, Any]], Awaitable[None]]


async def read(prompting: Prompting, body: ChatBody, http: Request, tell: Tell) -> tuple[int, ...]:
    """Token ids of a chat's messages.

    Args:
        tell: puts what happened here into the fleet's log.

    Raises:
        SpecError: a text holds control tokens and cannot be read as plain text.
    """
    messages = [message.plain() for message in body.messages]
    prompt_ids = await prompting.read_chat(messages)
    found = prompting.control_tokens(messages)
    if found:
        data = {"replica": "client", "control_tokens": list(found)}
        await tell(EventKind.PROMPT_ESCAPED, http.headers.get("x-request-id", ""), data)
    return prompt_ids
