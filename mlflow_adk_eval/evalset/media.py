"""The media in messages and in what tools return: images, audio, video, documents, and files of any other kind.

Media stand in parts of messages (``inline_data``, ``file_data``), in JSON as an object that has a MIME type beside its bytes,
as a block of a chat such as ``image_url``, as a data URI, or as base64 that begins as an image or a document does.
Whoever hands a conversation on as text has to say which media that text leaves out: `media_in` finds them in any value.
A text file that is part of a message can be read (`text_of_file`), and is then no longer left out.
"""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel

from mlflow_adk_eval.evalset.models import Content, Json, Part, carried, value_at
from mlflow_adk_eval.text import beginning

_LONGEST_NAME = 100
MOST_TEXT = 20_000
"""How many characters of a text file are shown. A longer one is not shown at all, since half a file can mislead."""

_TEXT_TYPES = re.compile(r"text/[\w.+-]+|application/(?:[\w.-]+\+)?(?:json|xml|yaml)|application/(?:x-)?(?:ndjson|jsonl|jsonlines)")
_MIME = re.compile(r"[a-z]+/[\w.+*-]+", re.IGNORECASE)
_MIME_KEYS = ("mime_type", "mimeType", "media_type", "mediaType", "content_type", "contentType")
_BYTES_KEYS = ("data", "bytes", "blob", "raw", "base64", "b64_json", "image_bytes", "imageBytes", "content", "body")
_PART_KEYS = ("inline_data", "inlineData", "file_data", "fileData")
_SIGNS = frozenset({"type", *_MIME_KEYS})
"""An object that is a file has one of these."""
_URI_KEYS = ("file_uri", "fileUri")
_NAME_KEYS = ("display_name", "displayName", "filename", "file_name", "fileName", "name", "title")

_DATA_URI = re.compile(r"data:(?P<mime>[a-z]+/[\w.+-]+)(?P<options>(?:;[\w=.+-]+)*),(?=[\w%+/<-])", re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
_BEGINNINGS = {
    "iVBORw0K": "image/png",
    "R0lGODdh": "image/gif",
    "R0lGODlh": "image/gif",
    "/9j/": "image/jpeg",
    "_9j_": "image/jpeg",
    "JVBERi0": "application/pdf",
    "UklGR": "audio/wav or image/webp",
    "SUQz": "audio/mpeg",
    "T2dnUw": "audio/ogg",
    "ZkxhQ": "audio/flac",
    "AAAAIGZ0eX": "video/mp4",
    "AAAAGGZ0eX": "video/mp4",
    "AAAAHGZ0eX": "video/mp4",
    "GkXfo": "video/webm",
}
"""How the base64 of a file begins, by its kind."""
_STARTS = tuple(_BEGINNINGS)
_SURE = 8
"""A beginning as long as this is no accident; a shorter one counts in a text of at least `_LONG` characters."""
_LONG = 32
_MAY_HOLD_MEDIA = re.compile(r"(?:mime|media|content)_?type|inline_?data|file_?data|_url\"|;base64,|\"source\"", re.IGNORECASE)
"""What a text of JSON has in it if it has media."""

_TEXT_BLOCKS = frozenset({
    "text",
    "input_text",
    "output_text",
    "summary_text",
    "refusal",
    "reasoning",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_call",
    "tool_result",
    "function_call",
    "function",
})  # fmt: skip
"""The blocks of messages that are no files."""

_SPOKEN = re.compile(r"audio/|application/ogg", re.IGNORECASE)
_OF_BLOCKS = {"image": "image/*", "audio": "audio/*", "video": "video/*", "document": "", "file": ""}
_BLOCK = re.compile(r"(?:input_|output_)?(image|audio|video|document|file)(?:_url|_file)?")
"""How chats call a block that holds a file."""
_BLOCK_KEYS = ("source", "url", "base64", "data", "file_id", "fileId", "file_data", "file_url", "filename", "transcript")


@dataclass(frozen=True, slots=True)
class Media:
    """One image, recording or document."""

    mime_type: str = ""
    """Empty where it is not known."""
    name: str = ""
    """Empty where it has none."""

    def __str__(self) -> str:
        """Return its name and type.

        >>> str(Media("image/png", "chart.png")), str(Media("image/png")), str(Media("", "notes")), str(Media())
        ('chart.png (image/png)', 'a file (image/png)', 'notes', 'a file of unknown type')
        """
        if self.mime_type:
            return f"{self.name or 'a file'} ({self.mime_type})"
        return self.name or "a file of unknown type"


def field_of(value: Any, *names: str) -> Any:
    """Return the first of some fields that an object or a mapping has, whatever its spelling; ``None``: none of them."""
    for name in names:
        found = carried(value, name)
        if found is not None:
            return found
    return None


def media_of_part(part: Part) -> Iterator[tuple[Media, Any]]:
    """Yield the media that a part of a message is, each with the object that holds it.

    The words of a recording stand beside it if it was transcribed, so that a reader of the part gets them: then it is not yielded.
    """
    spoken = bool(field_of(part.audio_transcription, "text"))
    for value in (part.inline_data, part.file_data):
        if value is None:
            continue
        media = described(value)
        if not (spoken and _SPOKEN.match(media.mime_type)):
            yield media, value


def described(value: Any) -> Media:
    """Return the type and the name of what ``inline_data``, ``file_data`` or an object with a MIME type holds."""
    uri = field_of(value, *_URI_KEYS, "uri", "url")
    name = field_of(value, *_NAME_KEYS)
    mime = field_of(value, *_MIME_KEYS)
    from_uri = _of_uri(uri) if isinstance(uri, str) else Media()
    return Media(
        _one_line(mime) or from_uri.mime_type,
        _one_line(name) or from_uri.name,
    )


def _of_uri(uri: str) -> Media:
    """Return what the address of a file says of it: without its query, which may be a secret."""
    if match := _DATA_URI.match(uri):
        return Media(match["mime"])
    try:
        path = unquote(urlsplit(uri).path)
    except ValueError:  # an address with half a pair of brackets
        path = uri
    segments = [segment for segment in path.split("/") if segment]
    if uri.startswith("artifact:") and "artifacts" in segments[:-1]:  # whose last segment is its version
        return Media("", _one_line(segments[segments.index("artifacts") + 1]))
    return Media("", _one_line(segments[-1]) if segments else "")


def _one_line(value: Any) -> str:
    return beginning(" ".join(value.split()), _LONGEST_NAME) if isinstance(value, str) else ""


def is_text(mime_type: str) -> bool:
    """Whether files of a type are texts.

    >>> is_text("text/markdown; charset=utf-8"), is_text("application/json"), is_text("image/svg+xml"), is_text("")
    (True, True, False, False)
    """
    return bool(_TEXT_TYPES.fullmatch(mime_type.partition(";")[0].strip().lower()))


def text_of_file(value: Any) -> str | None:
    """Return the text of an inline file; ``None`` where it is no text, or too long, or not here.

    >>> text_of_file({"mime_type": "text/plain", "data": "aGk="}), text_of_file({"mime_type": "image/png", "data": "aGk="})
    ('hi', None)
    """
    mime, data = field_of(value, *_MIME_KEYS), field_of(value, "data")
    if not isinstance(mime, str) or not is_text(mime):
        return None
    content = bytes(data) if isinstance(data, bytes | bytearray) else _decoded(data)
    if content is None:
        return None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    if not text.strip() or len(text) > MOST_TEXT or "\0" in text or media_in(text):
        return None
    return text


def _decoded(data: Any) -> bytes | None:
    """Return what a text of base64 in either alphabet says; ``None``: it is none."""
    if not isinstance(data, str) or not _BASE64.fullmatch(data.strip()):
        return None
    text = data.strip().rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        return None


def media_in(value: Any) -> tuple[Media, ...]:
    """Return the media anywhere in a value: JSON, a model, bytes, or a text.

    >>> list(map(str, media_in({"plots": [{"mimeType": "image/png", "data": "aGk=", "name": "a.png"}]})))
    ['a.png (image/png)']
    >>> list(map(str, media_in({"page": "see data:image/gif;base64,R0lGODlh"})))
    ['a file (image/gif)']
    """
    found: list[Media] = []
    try:
        _collect(value, found)
    except RecursionError:  # a value that contains itself, of which everything was seen many times
        return tuple(dict.fromkeys(found))
    return tuple(found)


def _collect(value: Any, found: list[Media]) -> None:
    """Add the media of a value to those found. It sees every leaf of every conversation, so the usual kinds come first."""
    kind = type(value)
    if kind is str:
        _collect_of_text(value, found)
    elif kind is int or kind is float or kind is bool or value is None:
        return
    elif kind is dict or isinstance(value, Mapping):
        _collect_of_object(value, found)
    elif isinstance(value, list | tuple):
        for item in value:
            _collect(item, found)
    elif isinstance(value, bytes | bytearray):
        found += _of_bytes(value)
    elif isinstance(value, BaseModel):
        _collect(value.model_dump(exclude_none=True), found)


def _of_bytes(value: bytes | bytearray) -> list[Media]:
    """Return the file that bytes are; none where they are empty."""
    if not value:
        return []
    begins = base64.b64encode(bytes(value[:12])).decode()
    kinds = [kind for start, kind in _BEGINNINGS.items() if begins.startswith(start)]
    return [Media(kinds[0] if kinds else "application/octet-stream")]


def _collect_of_text(text: str, found: list[Media]) -> None:
    """Add the data URIs of a text, or the file that all of it is in base64, or the media in the JSON that it is."""
    if len(text) < _SURE:
        return
    if "ata:" in text or "ATA:" in text:
        for match in _DATA_URI.finditer(text):
            if not is_text(match["mime"]) or "base64" in match["options"].lower():
                found.append(Media(match["mime"].lower()))
    begins = text[:_LONG].lstrip()
    if begins.startswith(("{", "[")):
        if _MAY_HOLD_MEDIA.search(text):
            _collect_of_json(text, found)
    elif begins.startswith(_STARTS):
        start = next(start for start in _STARTS if begins.startswith(start))
        is_long = len(start) >= _SURE or len(text) >= _LONG
        if is_long and _BASE64.fullmatch("".join(text.split())):
            found.append(Media(_BEGINNINGS[start]))


def _collect_of_json(text: str, found: list[Media]) -> None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    _collect(value, found)


def _collect_of_object(value: Mapping[Any, Any], found: list[Media]) -> None:
    if not _SIGNS.isdisjoint(value):
        media = _object_as_media(value)
        if media is not None:
            found.append(media)
            return
    for key, item in value.items():
        if key in _PART_KEYS and isinstance(item, Mapping):
            if text_of_file(item) is None:
                found.append(described(item))
        else:
            _collect(item, found)


def _object_as_media(value: Mapping[Any, Any]) -> Media | None:
    """Return the file that an object is: one with a MIME type beside its bytes or its address, or a block of a chat."""
    block = block_media(value)
    if block is not None and _is_sent(value):
        return block
    mime = field_of(value, *_MIME_KEYS)
    if not isinstance(mime, str) or not _MIME.match(mime):
        return None
    if any(isinstance(value.get(key), str) and value[key] for key in _URI_KEYS):
        return described(value)
    if is_text(mime):
        return described(value) if readable(value) is None and isinstance(value.get("data"), str) else None
    held = [value[key] for key in _BYTES_KEYS if isinstance(value.get(key), str | bytes | bytearray) and value[key]]
    return described(value) if held else None


def _is_sent(block: Mapping[Any, Any]) -> bool:
    """Whether a block in JSON is a message to a model, rather than an entry of a list with addresses, which is text."""
    kind = str(block["type"])
    if kind.startswith(("input_", "output_")) or isinstance(block.get("source"), Mapping):
        return True
    return any(isinstance(block.get(key), Mapping | str) and block[key] for key in (kind, "base64", "data"))


def readable(value: Mapping[Any, Any]) -> str | None:
    """Return the text that an object of JSON holds as a file: decoded, or as it stands there; ``None``: nobody could read it.

    >>> readable({"mime_type": "text/plain", "data": "aGk="}), readable({"mime_type": "text/plain", "data": "Hello there."})
    ('hi', 'Hello there.')
    >>> readable({"mime_type": "text/plain", "data": "/" * 40}) is None
    True
    """
    mime, data = field_of(value, *_MIME_KEYS), value.get("data")
    if not isinstance(mime, str) or not is_text(mime) or not isinstance(data, str):
        return None
    text = text_of_file(value)
    if text is None and (len(data) < _LONG or _decoded(data) is None):
        return data  # a short word can look like base64
    return text


def block_media(block: Any) -> Media | None:
    """Return the file that a block of a chat holds, as OpenAI, Anthropic, LangChain and MLflow have it; ``None`` where it holds none.

    >>> str(block_media({"type": "image_url", "image_url": {"url": "https://x.org/a.png?key=1"}}))
    'a.png (image/png)'
    >>> str(block_media({"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}))
    'a file (audio/wav)'
    >>> block_media({"type": "file", "path": "a.txt"}), block_media({"type": "text", "text": "hi"})
    (None, None)
    """
    kind = block.get("type") if isinstance(block, Mapping) else None
    if not isinstance(kind, str):
        return None
    match = _BLOCK.fullmatch(kind)
    if match is None:
        return None
    inner = _inner(block, kind, match[1])
    return None if inner is None else _of_block(inner, _OF_BLOCKS[match[1]])


def _inner(block: Mapping[Any, Any], kind: str, noun: str) -> Mapping[Any, Any] | str | None:
    """Return what holds the file of a block: an object or an address under its kind, or the block itself."""
    own = block.get(kind)
    if isinstance(own, Mapping):
        return own
    address = block.get(f"{noun}_url")
    if isinstance(address, Mapping | str) and address:
        return address
    return block if any(block.get(key) for key in _BLOCK_KEYS) else None


def _of_block(inner: Mapping[str, Any] | str, otherwise: str) -> Media:
    if isinstance(inner, str):
        inner = {"url": inner}
    source = inner.get("source")
    if isinstance(source, Mapping):
        inner = {**source, **inner}
    address = field_of(inner, "url", "file_url", "file_uri", "file_data", "data")
    found = described(inner)
    from_address = _of_uri(address) if isinstance(address, str) and ":" in address[:10] else Media()
    name = found.name or from_address.name or _one_line(inner.get("file_id"))
    mime = found.mime_type or from_address.mime_type
    written = inner.get("format")
    if not mime and isinstance(written, str):
        mime = written if "/" in written else f"{otherwise.removesuffix('/*') or 'audio'}/{_one_line(written)}"
    return Media(mime or mimetypes.guess_type(name)[0] or otherwise, name)


def part_of_block(block: Mapping[str, Any]) -> Part | None:
    """Return a block of a chat that holds a file as a part of a message; ``None`` where it holds none.

    What was heard stands beside a recording where the chat has its transcript.
    """
    media = block_media(block)
    if media is None:
        return None
    kind = str(block["type"])
    inner = _inner(block, kind, kind.removeprefix("input_").removeprefix("output_").partition("_")[0])
    source = value_at(inner, "source")
    held: Any = source if isinstance(source, Mapping) else inner
    address = held if isinstance(held, str) else field_of(held, "url", "file_url", "file_data", "data", "base64", "file_id")
    named: Json = {"mime_type": media.mime_type}
    if media.name:
        named["display_name"] = media.name
    words = value_at(inner, "transcript")
    heard: Json = {"audio_transcription": {"text": words}} if isinstance(words, str) and words else {}
    if not isinstance(address, str):
        return Part(inline_data=named, **heard)
    uri = _DATA_URI.match(address)
    if uri and "base64" in uri["options"].lower():
        return Part(inline_data={**named, "data": address[uri.end() :]}, **heard)
    if "://" in address or uri or address == value_at(held, "file_id"):
        return Part(file_data={**named, "file_uri": address}, **heard)
    return Part(inline_data={**named, "data": address}, **heard)


def media_parts(message: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the media of a message of a chat: among its blocks, or beside them as OpenAI's audio and OpenRouter's images are."""
    audio, result = message.get("audio"), message.get("result")
    if isinstance(audio, Mapping):
        yield from _block_parts([{"type": "audio", "audio": audio}])
    if message.get("type") == "image_generation_call" and isinstance(result, str) and result:
        yield Part(inline_data={"mime_type": "image/png", "data": result})
    yield from _block_parts(message.get("content"))
    yield from _block_parts(message.get("images"))


def _block_parts(blocks: Any) -> Iterator[Part]:
    for block in blocks if isinstance(blocks, list | tuple) else ():
        if not isinstance(block, Mapping):
            continue
        kind = block.get("type")
        part = part_of_block(block)
        if part is not None:
            yield part
        elif isinstance(kind, str) and kind not in _TEXT_BLOCKS and not isinstance(block.get("text"), str):
            yield unread_block(kind)


def unread_block(kind: str) -> Part:
    """Return a block of a type that nobody knows here: it may be anything, so it is a file of unknown type."""
    return Part(file_data={"display_name": f"a block of type {_one_line(kind)}"})


def has_media(content: Content) -> bool:
    """Whether a message has media, shown or not."""
    return any(not part.thought and (part.inline_data or part.file_data) for part in content.parts or ())
