from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval import redact
from mlflow_adk_eval.redact import redacted, secrets_of, without_credentials
from tests.profiles import examples


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "github_token", "CLIENT_SECRET", "DB_PASSWORD", "GOOGLE_APPLICATION_CREDENTIALS"])
def test_values_of_secret_names_are_replaced_by_the_name(name: str) -> None:
    secrets = secrets_of({name: "s3cr3t-value"})
    assert redacted("the server said: bad s3cr3t-value!", secrets) == f"the server said: bad [{name}]!"


def test_ordinary_and_short_values_stay() -> None:
    secrets = secrets_of({"HOME": "/home/someone", "TOKENIZERS_PARALLELISM": "false", "API_KEY": ""})
    assert redacted("false alarm in /home/someone", secrets) == "false alarm in /home/someone"


def test_a_secret_within_a_longer_secret_leaves_no_rest() -> None:
    secrets = secrets_of({"A_KEY": "abcdefgh", "B_KEY": "abcdefghijkl"})
    assert redacted("abcdefghijkl abcdefgh", secrets) == "[B_KEY] [A_KEY]"


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "tok-12345678")
    assert secrets_of()["tok-12345678"] == "[SOME_TOKEN]"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:pw@host/x", "https://host/x"),
        ("https://ghp_abc@github.com/a/b.git", "https://github.com/a/b.git"),
        ("postgresql://mlflow:pw@db:5432/mlflow failed", "postgresql://db:5432/mlflow failed"),
        ("git@github.com:acme/agent.git", "git@github.com:acme/agent.git"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
    ],
)
def test_credentials_are_cut_from_urls(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


VALUE = 'sk/live"4eC+39?H&q~ü-jWDarjtT1z'


def _json(text: str) -> str:
    return json.dumps(text)[1:-1]


@pytest.mark.parametrize(
    "spell",
    [
        str,
        _json,
        lambda text: _json(_json(text)),
        lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
        lambda text: _json(text).replace("/", "\\/"),
        quote,
        quote_plus,
        lambda text: quote(text, safe=""),
        lambda text: re.sub("%..", lambda code: code[0].lower(), quote(text, safe="")),
        html.escape,
        lambda text: text.encode().hex(),
        lambda text: text.encode().hex().upper(),
    ],
)
def test_a_secret_is_hidden_however_it_is_spelt(spell: Callable[[str], str]) -> None:
    assert redacted(f"<{spell(VALUE)}>", secrets_of({"STRIPE_KEY": VALUE})) == "<[STRIPE_KEY]>"


@given(st.binary(max_size=7), st.text(st.characters(codec="utf-8"), min_size=8, max_size=40), st.binary(max_size=7), st.booleans())
@examples(200)
def test_a_secret_within_something_in_base64_leaves_three_characters_at_most(
    before: bytes, value: str, after: bytes, urlsafe: bool
) -> None:
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    whole = encode(before + value.encode() + after).decode()
    assert "[STRIPE_KEY]" in redacted(whole, secrets_of({"STRIPE_KEY": value}))
    rest = redacted(whole, secrets_of({"STRIPE_KEY": value})).replace("[STRIPE_KEY]", "")
    assert len(rest) <= len(encode(before)) + len(encode(after)) + 3


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(redact, "_FILES", {})
    return tmp_path


PLAIN = ["12", "3,141.59", "TRUE", "false", "http://127.0.0.1:5000", "https://api.example.com/v1", "sqlite:///mlflow.db"]


@pytest.mark.parametrize("value", PLAIN)
def test_a_value_of_an_env_file_that_is_plainly_none_is_no_secret(value: str, in_folder: Path) -> None:
    (in_folder / ".env").write_text(f"GH_PAT={value}")
    assert value not in secrets_of()


HIDDEN = ["ghp_16C7e42F292c6912E7710c838347Ae178B4a", "correct horse battery", "123456789012", "https://me:pw@example.com/x"]


@pytest.mark.parametrize(
    "value", [*HIDDEN, "https://hooks.example.com/services/T0/XXXXXXXXXXXXXXXXXXXXXXXX", "https://example.com/?sig=abc"]
)
def test_any_other_value_of_an_env_file_is_hidden(value: str, in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (in_folder / ".env").write_text(f"GH_PAT='{value}'\nCLOUD_REGION=europe-west-4\n")
    assert redacted(f"it is {value} in europe-west-4", secrets_of()) == "it is [GH_PAT] in europe-west-4"
    monkeypatch.setenv("MLFLOW_ADK_EVAL_NOT_SECRET", "OTHER, GH_PAT")
    assert redacted(value, secrets_of()) == value


def test_the_environments_value_of_a_name_in_an_env_file_is_hidden_too(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (in_folder / ".env").write_text("GH_PAT=of-the-file-1\n")
    monkeypatch.setenv("GH_PAT", "of-the-process-2")
    assert redacted("of-the-file-1 of-the-process-2", secrets_of()) == "[GH_PAT] [GH_PAT]"


def test_a_password_and_the_lines_of_a_key_are_secrets_by_themselves(in_folder: Path) -> None:
    (in_folder / ".env").write_text('DSN=postgresql://me:Tr0ub4dor%263@db/x\nPEM="-----BEGIN-----\nMHcCAQEEIBiJ6m2FQ0vG1\n-----END-----"\n')
    assert redacted("Tr0ub4dor&3 Tr0ub4dor%263 MHcCAQEEIBiJ6m2FQ0vG1", secrets_of()) == "[DSN] [DSN] [PEM]"


def test_the_nearest_env_file_above_a_folder_counts_from_then_on(in_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    agent = tmp_path_factory.mktemp("agent")
    (agent / ".env").write_text("GH_PAT=ghp_16C7e42F292c\n")
    assert "ghp_16C7e42F292c" not in secrets_of()
    redact.hide_env_file(agent / "inner" / "deep")
    assert redacted("ghp_16C7e42F292c", secrets_of()) == "[GH_PAT]"
