"""Keeping the values of secret variables out of the ledger."""

from __future__ import annotations

import json

from mlflow_adk_eval.redact import secret_values


class SecretMask:
    """Keeps the values of secret environment variables out of the file.

    In JSON, control characters are escaped, so a mark made of one is never part of what it stands in. Reading undoes the marks, since
    a conversation that reads differently would be judged differently. Without the variable, what was kept cannot be used.
    """

    def __init__(self) -> None:
        """Take the environment as it is."""
        forms = {
            form: f"\x1a[{name}]{number}\x1a".encode()
            for value, name in secret_values().items()
            for number, form in enumerate(_forms(value))
        }
        self._marks = sorted(forms.items(), key=lambda item: -len(item[0]))

    def hide(self, text: bytes) -> bytes:
        """Return JSON with marks."""
        for form, mark in self._marks:
            text = text.replace(form, mark)
        return text

    def show(self, text: bytes | None) -> bytes | None:
        """Return the JSON that was hidden; ``None`` if it cannot be had back."""
        if text is None or b"\x1a" not in text:
            return text
        for form, mark in reversed(self._marks):
            text = text.replace(mark, form)
        return None if b"\x1a" in text else text


def _forms(value: str) -> list[bytes]:
    """Return how JSON spells a value: in a text, and in JSON that is itself a text."""
    forms = [value]
    for _ in range(2):
        forms += [json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in forms for ascii_only in (False, True)]
    return [form.encode("utf-8", "surrogatepass") for form in dict.fromkeys(forms)]
