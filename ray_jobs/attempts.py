"""Names of a request's attempts: clients know a request by its own id, engines by one of these."""

import re
from collections.abc import Container

_NUMBER = re.compile(r"#(\d+)$")


def named(request_id: str, attempt: int) -> str:
    """The name of an attempt; the first one has the request's own."""
    return f"{request_id}#{attempt}" if attempt else request_id


def own_id(name: str) -> str:
    """The id by which the client knows it."""
    return _NUMBER.sub("", name)


def free_name(name: str, taken: Container[str]) -> str:
    """This name, or the next one of the same request that is not taken.

    A client that lost its connection asks again under the same id, while the replica may still
    have to learn that it left: the two must never meet under one name.
    """
    found = _NUMBER.search(name)
    attempt = int(found[1]) if found else 0
    while name in taken:
        attempt += 1
        name = named(own_id(name), attempt)
    return name
