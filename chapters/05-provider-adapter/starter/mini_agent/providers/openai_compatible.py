"""The OpenAI-compatible transport: HTTP out, checked `ProviderChunk`s in.

Everything the provider sends is unknown until a check has named it. Past this file there are
no `choices`, no headers and no key.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx

from mini_agent.abort import AbortError, AbortSignal, race
from mini_agent.model import ModelError
from mini_agent.provider_adapter import (
    FinishChunk,
    ProviderChunk,
    ProviderRequest,
    TextChunk,
    ToolChunk,
)
from mini_agent.sse import decode_chunks, read_sse_messages
from mini_agent.types import Usage

# A model may think for minutes before its first byte; httpx alone would wait five seconds.
DEFAULT_TIMEOUT = httpx.Timeout(connect=10, read=600, write=60, pool=60)


class OpenAICompatibleTransport:
    """Sends requests to `{base_url}/chat/completions` and reads the event stream that answers.

    A client that is passed in stays the caller's to close, and keeps the timeouts it was given.
    Without one, each request opens and closes its own. A bad URL or key is an error of the
    request, before anything is sent.
    """

    def __init__(
        self, *, base_url: str, api_key: str, client: httpx.AsyncClient | None = None
    ) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._client = client

    async def stream(
        self, request: ProviderRequest, signal: AbortSignal | None = None
    ) -> AsyncGenerator[ProviderChunk, None]:
        """The chunks of one reply. Every error that leaves here is free of the key."""
        raise NotImplementedError("step 5.3: OpenAICompatibleTransport.stream")
        yield FinishChunk(None)  # a `yield` makes this an async generator; yours has its own


def sanitized_transport_error(error: Exception, api_key: str) -> Exception:
    """The error to raise in place of `error`: the key in its text replaced by `[redacted]`.

    Raise it `from None`, outside the handler if you can: a chained exception would bring the text
    back. An AbortError stays one, so that an abort is still known as an abort.
    """
    raise NotImplementedError("step 5.4: sanitized_transport_error")


def parse_provider_chunk(payload: object) -> list[ProviderChunk]:
    """The chunks in one payload: the data of one SSE message, as text or already as JSON.

    Token counts without a finish reason are a FinishChunk without a reason. Raises ModelError
    that names the first field which is not as it must be. Fields that the agent has no use for
    are not looked at.
    """
    raise NotImplementedError("step 5.3: parse_provider_chunk")
