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
    if _value(env, "ANTHROPIC_API_KEY"):
        where = _target(env, "ANTHROPIC_BASE_URL", API_URL, DEFAULT_MODEL)
        return ModelChoice("anthropic", f"ANTHROPIC_API_KEY is set: {where}")
    if _value(env, "OPENAI_API_KEY"):
        where = _target(env, "OPENAI_BASE_URL", OPENAI_URL, OPENAI_MODEL)
        return ModelChoice("openai", f"OPENAI_API_KEY is set: {where}")
    return ModelChoice(
        "scripted",
        "neither ANTHROPIC_API_KEY nor OPENAI_API_KEY is set: the scripted model, offline",
    )


def create_model(
    env: Mapping[str, str], client: httpx.AsyncClient | None = None, *, delay: float = DELAY
) -> tuple[ModelChoice, Model]:
    """The choice and its model. `client` carries the requests of a real one, `delay` paces ours."""
    choice = choose_model(env)
    match choice.kind:
        case "scripted":
            return choice, offline_model(delay=delay)
        case "anthropic":
            return choice, AnthropicModel(
                api_key=env["ANTHROPIC_API_KEY"],
                model=_value(env, "MINI_AGENT_MODEL") or DEFAULT_MODEL,
                base_url=_value(env, "ANTHROPIC_BASE_URL") or API_URL,
                client=client,
            )
        case "openai":
            transport = OpenAICompatibleTransport(
                base_url=_value(env, "OPENAI_BASE_URL") or OPENAI_URL,
                api_key=env["OPENAI_API_KEY"],
                client=client,
            )
            model = _value(env, "MINI_AGENT_MODEL") or OPENAI_MODEL
            return choice, ProviderModel(transport, provider="openai", model=model)


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
