"""The contract of a model: one method, and what its stream promises.

`stream()` returns at once. From then on whatever goes wrong, in the network, in the provider's
answer or in the model's own code, is one `error` event that keeps the content so far.
An abort is such an event too. Nothing is raised but a programmer's mistake.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from mini_agent.abort import AbortSignal
from mini_agent.event_stream import EventStream
from mini_agent.events import ModelEvent
from mini_agent.types import AgentContext, AssistantMessage

ModelStream: TypeAlias = EventStream[ModelEvent, AssistantMessage]


class ModelError(Exception):
    """A reply cannot be completed. Its text is written for the user who will read it."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a caller may ask of one reply. An aborted `signal` stops it."""

    signal: AbortSignal | None = None


class Model(Protocol):
    """Anything that answers a context with a stream of model events."""

    def stream(self, context: AgentContext, options: StreamOptions | None = None) -> ModelStream:
        """Begin one reply. The work starts when the stream is read."""
        ...
