from __future__ import annotations

import pytest

from mlflow_adk_eval.redact import redacted, secrets_of, without_credentials


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
