"""What is known of the hosts where models are: whose key goes there, which models are theirs, and what their requests may hold.

Of reasoning in assistant messages that are sent back, as reports of people's clients show it (GitHub issues of the repositories named):

- OpenAI, Azure, Gemini and Mistral refuse fields that they don't know, Mistral with ``extra_forbidden`` (charmbracelet/crush 1590,
  BerriAI/litellm 30835), Gemini with ``Cannot find field``; Groq with ``property 'reasoning_content' is unsupported`` (janhq/jan 8136).
- Cerebras refuses ``reasoning_content`` and takes ``reasoning`` (QwenLM/qwen-code 11045).
- DeepSeek wants ``reasoning_content`` back with tool calls in thinking mode (anomalyco/opencode 24722), which its first reasoning model
  refused. Moonshot wants it, too: ``thinking is enabled but reasoning_content is missing`` (continuedev/continue 11711), and Xiaomi's MiMo.
- Z.ai asks for it (docs.z.ai, thinking mode). Fireworks takes it and refuses fields that it doesn't know (vercel/ai releases).
- OpenRouter takes ``reasoning_details`` unchanged, and ``reasoning`` (openrouter.ai/docs, reasoning tokens).
- vLLM called the field ``reasoning_content`` and later ``reasoning`` (vllm-project/vllm 27755), SGLang and llama.cpp call it
  ``reasoning_content``, Ollama ``reasoning``: what any other host gets is the field in which its own answer had it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

NOT_SENT = "never"
"""In place of a field: no reasoning is sent back."""
ALWAYS = "always"
"""In place of a field: reasoning is sent back wherever the answer had it."""


@dataclass(frozen=True, slots=True)
class Host:
    """What a provider's endpoints have in common."""

    key_variable: str | None = None
    """The environment variable with the key for it; None where no provider is known."""
    base_url: str | None = None
    """Where it speaks OpenAI chat completions, for models that are named without saying where."""
    models: str | None = None
    """How the names of its own models begin, as a pattern."""
    reasoning: str | None = None
    """The field in which reasoning is sent back, or NOT_SENT; None: the one in which the answer had it."""
    details: bool = True
    """Whether it takes ``reasoning_details`` back."""
    wants_reasoning: bool = False
    """Whether it refuses tool calls that have lost the field, once there was reasoning in a conversation."""
    completion_tokens: bool = False
    """Whether the bound of an answer is called ``max_completion_tokens``."""
    azure: bool = False
    """Whether a key goes into a header ``api-key``."""


_AZURE = Host("AZURE_OPENAI_API_KEY", reasoning=NOT_SENT, completion_tokens=True, azure=True)
_CONTENT = "reasoning_content"
HOSTS: Mapping[str, Host] = {
    "openrouter.ai": Host("OPENROUTER_API_KEY", "https://openrouter.ai/api/v1", reasoning="reasoning"),
    "api.openai.com": Host(
        "OPENAI_API_KEY",
        "https://api.openai.com/v1",
        r"(ft:)?(gpt-\d|chatgpt-|o(1|3|4)(-|$))",  # not gpt-oss, which others serve
        reasoning=NOT_SENT,
        completion_tokens=True,
    ),
    "openai.azure.com": _AZURE,
    "openai.azure.us": _AZURE,
    "cognitiveservices.azure.com": _AZURE,
    "services.ai.azure.com": _AZURE,
    "api.cognitive.microsoft.com": _AZURE,
    "api.anthropic.com": Host("ANTHROPIC_API_KEY", "https://api.anthropic.com/v1", "claude-"),
    "nousresearch.com": Host("NOUS_API_KEY"),
    "generativelanguage.googleapis.com": Host(
        "GEMINI_API_KEY",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "gemini-",
        reasoning=NOT_SENT,
    ),
    "api.deepseek.com": Host(
        "DEEPSEEK_API_KEY",
        "https://api.deepseek.com/v1",
        "deepseek-",
        reasoning=_CONTENT,
        details=False,
        wants_reasoning=True,
    ),
    "api.groq.com": Host("GROQ_API_KEY", "https://api.groq.com/openai/v1", reasoning=NOT_SENT),
    "api.cerebras.ai": Host("CEREBRAS_API_KEY", "https://api.cerebras.ai/v1", reasoning="reasoning", details=False),
    "api.mistral.ai": Host(
        "MISTRAL_API_KEY",
        "https://api.mistral.ai/v1",
        "(mi|mini|magi|code|dev)stral-|pixtral-",
        reasoning=NOT_SENT,
    ),
    "api.together.xyz": Host("TOGETHER_API_KEY", "https://api.together.xyz/v1"),
    "api.fireworks.ai": Host(
        "FIREWORKS_API_KEY",
        "https://api.fireworks.ai/inference/v1",
        "accounts/fireworks/",
        reasoning=_CONTENT,
        details=False,
    ),
    "api.x.ai": Host("XAI_API_KEY", "https://api.x.ai/v1", "grok-"),
    "api.moonshot.ai": Host(
        "MOONSHOT_API_KEY",
        "https://api.moonshot.ai/v1",
        "kimi-|moonshot-",
        reasoning=_CONTENT,
        details=False,
        wants_reasoning=True,
    ),
    "api.moonshot.cn": Host("MOONSHOT_API_KEY", reasoning=_CONTENT, details=False, wants_reasoning=True),
    "api.z.ai": Host("ZAI_API_KEY", "https://api.z.ai/api/paas/v4", "glm-", reasoning=_CONTENT, details=False),
    "api.xiaomimimo.com": Host("MIMO_API_KEY", reasoning=_CONTENT, details=False, wants_reasoning=True),
}
"""By host; each is meant with all hosts below it, such as the regional ``eu.api.openai.com``."""
ANY_HOST = Host()


def host_of(url: str) -> Host:
    """What is known of a URL's host; ``ANY_HOST`` where nothing is."""
    name = urlsplit(url).hostname or ""
    return next((host for known, host in HOSTS.items() if name == known or name.endswith(f".{known}")), ANY_HOST)


def home_of(model: str) -> Host | None:
    """The provider whose own models have such a name; None for names that no one of them has alone, as those with a provider in
    front (``openai/gpt-5``)."""
    return next((host for host in HOSTS.values() if host.models and re.match(host.models, model)), None)
