"""Which model answers: a real one if the environment holds a key for it, else the offline one.

The rule is a pure function of the environment, so that it can be shown and tested without a
network. Nothing above this file knows which model it was given.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import httpx

from mini_agent.model import Model
from mini_agent.offline import DELAY, offline_model
from mini_agent.provider_adapter import ProviderModel
from mini_agent.providers.anthropic import API_URL, DEFAULT_MODEL, AnthropicModel
from mini_agent.providers.openai_compatible import OpenAICompatibleTransport

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_MODEL = "gpt-5-mini"


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which model, and why. The reason is for the banner: it never holds a key."""

    kind: Literal["scripted", "anthropic", "openai"]
    reason: str


def choose_model(env: Mapping[str, str]) -> ModelChoice:
    """The choice that `env` makes. ANTHROPIC_API_KEY comes first; a blank key is no key."""
    raise NotImplementedError("step 10.5: choose_model")


def create_model(
    env: Mapping[str, str], client: httpx.AsyncClient | None = None, *, delay: float = DELAY
) -> tuple[ModelChoice, Model]:
    """The choice and its model. `client` carries the requests of a real one, `delay` paces ours."""
    raise NotImplementedError("step 10.5: create_model")


def _value(env: Mapping[str, str], name: str) -> str:
    """A variable without the space around it; "" where it is not set."""
    return env.get(name, "").strip()


def _target(env: Mapping[str, str], url_name: str, default_url: str, default_model: str) -> str:
    """`claude-opus-5 at api.anthropic.com`: only the host, since a URL may hold a password."""
    url = _value(env, url_name) or default_url
    try:
        host = urlsplit(url).hostname
    except ValueError:
        host = None
    return f"{_value(env, 'MINI_AGENT_MODEL') or default_model} at {host or 'an invalid URL'}"
