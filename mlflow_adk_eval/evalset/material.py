"""What a judge is sent of a conversation: texts, and the media that these texts leave out.

A judge reads text. An image in a message reaches it as the words ``[image/png]``, so whatever it said of that message would be a guess.
Each text for judges is therefore a `Material`, which knows the media that stood in what the text was made of. A `Question` has to name
those of all its material, and `judge.voting.VoteCollector` puts no question to a judge that was not shown everything; nor does
`judge.providers.vertex.VertexService`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mlflow_adk_eval.evalset.media import Media, media_in
from mlflow_adk_eval.text import listed

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Material:
    """A text for a judge."""

    text: str
    unshown: tuple[Media, ...]
    """The media in what the text was made of that the text does not show."""


NOTHING = Material("", ())


def material_of(text: str) -> Material:
    """Return a text that somebody wrote as material. Media can stand in it as data URIs."""
    return Material(text, media_in(text))


def joined(materials: Iterable[Material], between: str = "\n") -> Material:
    """Return one material of several; those without a text add no line."""
    each = list(materials)
    return Material(between.join([one.text for one in each if one.text]), unshown_in(each))


def unshown_in(materials: Iterable[Material]) -> tuple[Media, ...]:
    """Return the media that none of the texts shows, each once."""
    return tuple(dict.fromkeys(media for one in materials for media in one.unshown))


def not_shown(media: Iterable[Media], who: str = "the judge") -> str:
    """Return the reason for which nobody asks a model about something.

    >>> not_shown([Media("image/png", "chart.png")])
    'the judge was not shown chart.png (image/png)'
    """
    names = list(dict.fromkeys(map(str, media)))
    return f"{who} was not shown {listed(names, _MOST_NAMED)}"
