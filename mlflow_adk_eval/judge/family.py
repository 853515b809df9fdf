"""Whether a judge and an agent are models of one family, since models tend to prefer what their own family writes.

The family is the line of models, such as *gemini* or *gpt*, whoever serves it (Panickssery, Bowman and Feng 2024, "LLM evaluators recognize and
favor their own generations").
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_LINES = ("gemini", "gemma", "gpt", "claude", "llama", "qwen", "mistral", "deepseek", "grok", "nova", "command", "phi")
_SPELT = {
    "gpt": r"(?:chat)?gpt|o[134](?!\d)",
    "llama": r"(?:code)?llama",
    "qwen": "qwen|qwq",
    "mistral": "mistral|mixtral|ministral|magistral|codestral",
}
"""Of lines whose models do not all have its name."""
# A name may start with its provider, as in `openai/gpt-4o` or `bedrock/eu.anthropic.claude-3`.
_FAMILIES = {line: re.compile(rf"(?:.*[/.:_-])?(?:{_SPELT.get(line, line)})(?:$|[-.:@_\d].*)", re.IGNORECASE) for line in _LINES}


def family_of(model: str) -> str:
    """Return the family of a model by its name; empty where it is not known.

    >>> family_of("gemini-2.5-flash"), family_of("openai/gpt-4o"), family_of("azure/o3-mini"), family_of("my-judge")
    ('gemini', 'gpt', 'gpt', '')
    """
    return next((family for family, line in _FAMILIES.items() if line.fullmatch(model)), "")


def self_preference(judges: Iterable[str], agents: Iterable[str]) -> str:
    """Return a note where judges and agents are of one family; empty where they are not, as far as their names say.

    Args:
        judges: the models that judged, which may end in ``at HOST``.
        agents: the models of the agent.
    """
    agents = list(agents)
    known = {family for agent in agents if (family := family_of(agent))}
    alike = [judge for judge in dict.fromkeys(name.partition(" at ")[0] for name in judges) if family_of(judge) in known]
    if not alike:
        return ""
    families = {family_of(judge) for judge in alike}
    theirs = [agent for agent in dict.fromkeys(agents) if family_of(agent) in families]
    both = f"the judge {' and '.join(alike)} and the agent's model {' and '.join(theirs)} are of one family"
    advice = "judge with another family, or calibrate the judge on people's labels"
    return f"{both}, and models tend to prefer answers of their own: {advice}"
