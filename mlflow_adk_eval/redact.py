"""Keeping keys and passwords out of what is written down."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote, urlsplit

NOT_SECRET = "MLFLOW_ADK_EVAL_NOT_SECRET"  # noqa: S105 - a name
"""The environment variable that names variables of ``.env`` files whose values may be written down, separated by commas."""
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)
_PLAIN_NAME = re.compile(
    r"(^|_)(REGION|LOCATION|ZONE|PROJECT|MODEL|HOST|PORT|LEVEL|ENV|ENVIRONMENT|STAGE|MODE|NAME|LANG|LOCALE|TZ|VERSION|DIR|FOLDER|PATH|FILE)$",
    re.IGNORECASE,
)
"""What variables of a ``.env`` file are called that say where and how a program runs."""
_PLAIN_VALUE = re.compile(r"[+-]?[\d.,]{1,11}|true|false|[a-z][a-z\d+.-]*://[\w.:-]*(/[\w.-]{0,15})*", re.IGNORECASE | re.ASCII)
"""Numbers, words of logic, and URLs without credentials, query and long parts, which may be those of a webhook."""
SHORTEST = 8
"""A shorter value, such as ``1`` or ``true``, would be found in every other word."""
_SHORTEST_LINE = 16
_USERINFO = re.compile(r"://[^/?#@\s\"'\\]+@")
_FILES: dict[str, dict[str, str]] = {}
"""The variables of each ``.env`` file that an evaluation has come across, by its path."""


def hide_env_file(folder: Path) -> Path | None:
    """Take all values of the nearest ``.env`` file, from `folder` upwards, for secrets from now on; return the file."""
    for parent in (folder, *folder.parents):
        path = f"{parent}/.env"
        if os.path.isfile(path):  # noqa: PTH113 - looked for wherever a text is written
            if path not in _FILES:
                from dotenv import dotenv_values  # noqa: PLC0415 - comes with MLflow

                with suppress(OSError, ValueError):
                    _FILES[path] = {name: value for name, value in dotenv_values(path).items() if value}
            return Path(path)
    return None


def secret_values(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what is secret, each with the name of its variable, and which of its values that is where there are several.

    These are the values of variables whose names look secret, and of all variables of the ``.env`` files that agent and caller use, unless
    name or value say that they are not: see `NOT_SECRET`.

    Args:
        environ: the variables; ``None``: those of this process, with those ``.env`` files.

    >>> secret_values({"GEMINI_API_KEY": "AIza-0123456789", "HOME": "/home/me", "USE_TOKENS": "true"})
    {'AIza-0123456789': 'GEMINI_API_KEY'}
    """
    environment = os.environ if environ is None else environ
    secret = {environment[name]: name for name in environment if _is_secret(name)}  # decodes no other value
    if environ is None:
        with suppress(OSError):  # the working directory was deleted
            hide_env_file(Path.cwd())
        plain = {name.strip() for name in environment.get(NOT_SECRET, "").split(",")}
        for path, variables in list(_FILES.items()):
            for name, written in variables.items():
                for value, label in ((environment.get(name, ""), name), (written, f"{name} in {path}")):
                    says_so = (_PLAIN_NAME.search(name) and not _is_secret(name)) or _PLAIN_VALUE.fullmatch(value)
                    if name not in plain and value not in secret and (has_credentials(value) or not says_so):
                        secret[value] = label
    secret |= {part: f"{name}, part {number}" for value, name in secret.items() for number, part in _parts(value) if part not in secret}
    return {value: name for value, name in secret.items() if len(value) >= SHORTEST}


@lru_cache(maxsize=1024)
def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def _parts(value: str) -> Iterator[tuple[int, str]]:
    """Yield what is secret by itself: the lines of a key, the password of a URL."""
    if "\n" in value:
        yield from ((number, line) for number, line in enumerate(value.splitlines(), 1) if len(line) >= _SHORTEST_LINE)
    if has_credentials(value):
        with suppress(ValueError):  # of a port that is none
            yield from enumerate(dict.fromkeys((password := urlsplit(value).password or "", unquote(password))))


def secrets_of(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what must not be written down, longest first, each with what may stand in its place.

    That are the `secret_values`, also as they are spelt inside of other texts: see `spellings`.

    Args:
        environ: the variables; ``None``: those of this process.

    >>> secrets_of({"GEMINI_API_KEY": "AIza-01234"})["AIza-01234"], redacted("QUl6YS0wMTIzNA==", secrets_of({"GEMINI_API_KEY": "AIza-01234"}))
    ('[GEMINI_API_KEY]', '[GEMINI_API_KEY]A==')
    """
    secret = {form: f"[{re.split('[ ,]', name)[0]}]" for value, name in secret_values(environ).items() for form in spellings(value)}
    return dict(sorted(secret.items(), key=lambda item: -len(item[0])))


@lru_cache(maxsize=256)
def spellings(value: str) -> tuple[str, ...]:
    """Return how a value may be spelt: as it is, quoted, and within JSON, a URL, HTML, base64 or hex, also of a longer text.

    Of base64, it is the characters that depend on nothing but the value, for each of the three places where it may begin.
    """
    forms = [value, repr(value)[1:-1], quote(value), quote(value, safe=""), quote_plus(value), html.escape(value)]
    forms += [re.sub("%..", lambda code: code[0].lower(), form) for form in forms[2:5]]
    for _ in range(2):  # JSON that is a text in JSON, too
        forms += [json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in dict.fromkeys(forms) for ascii_only in (False, True)]
    forms += [form.replace("/", "\\/") for form in forms]
    content = value.encode("utf-8", "surrogatepass")
    forms += [content.hex(), content.hex().upper()]
    for before, unsure in enumerate((0, 2, 3)):
        text = base64.b64encode(bytes(before) + content).decode()
        core = text[unsure : len(text) - (0, 3, 2)[(before + len(content)) % 3]]
        forms += [core, core.replace("/", "\\/"), core.replace("+", "-").replace("/", "_"), quote(core, safe="")]
    return tuple(dict.fromkeys(form for form in forms if len(form) >= SHORTEST))


def cut(text: str, limit: int) -> str:
    """Return the beginning of a text, without half a secret where it ends.

    >>> cut("abcdefgh", 5)
    'abcd…'
    """
    return text if len(text) <= limit else f"{redacted(text, secrets_of())[: limit - 1]}…"


def redacted(text: str, secrets: Mapping[str, str]) -> str:
    """Return `text` without the secrets.

    >>> redacted("401 for key AIza-0123456789", {"AIza-0123456789": "[GEMINI_API_KEY]"})
    '401 for key [GEMINI_API_KEY]'
    """
    for value, placeholder in secrets.items():
        text = text.replace(value, placeholder)
    return text


def without_credentials(text: str) -> str:
    """Return `text` without the user names and passwords in its URLs.

    >>> without_credentials("https://me:ghp_123@github.com/acme/agent.git")
    'https://github.com/acme/agent.git'
    """
    return _USERINFO.sub("://", text)


def command(*words: object, tracking_uri: str | None = None, **options: object) -> str:
    """Return a command of this package, quoted for a shell; options without a value are left out, and the user and password of a store.

    >>> command("gate", "0123abcd", policy="my gate.yaml", model=None, tracking_uri="postgresql://me:secret@db/mlflow")
    "mlflow-adk-eval gate 0123abcd --policy 'my gate.yaml' --tracking-uri postgresql://db/mlflow"
    """
    where = {"tracking_uri": without_credentials(tracking_uri)} if tracking_uri else {}
    given = [text for name, value in (options | where).items() if value is not None for text in (f"--{name.replace('_', '-')}", str(value))]
    return shlex.join(["mlflow-adk-eval", *map(str, words), *given])


def has_credentials(text: str) -> bool:
    """Whether a URL in `text` has a user name or password in it."""
    return _USERINFO.search(text) is not None


def message_of(error: BaseException) -> str:
    """Return the first line of an error without secrets and credentials; its type where it says nothing."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return redacted(without_credentials(lines[0]), secrets_of())
