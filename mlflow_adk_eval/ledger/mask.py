"""Keeping the values of secret variables out of the ledger."""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

from mlflow_adk_eval.redact import secret_values, spellings


class SecretMask:
    """Keeps the values of secret variables, however they are spelt, out of the ledger.

    In JSON, control characters are escaped, so a mark made of one is never part of what it stands in. Reading undoes the marks, since
    a conversation that reads differently would be judged differently. Without the variable, what was kept cannot be used.
    """

    def __init__(self) -> None:
        """Take the environment as it is."""
        secret = secret_values()
        values_of = Counter(secret.values())
        forms: dict[bytes, bytes] = {}
        for value, name in secret.items():
            label = name if values_of[name] == 1 else f"{name} {uuid4().hex}"  # which of several it was is not known later
            spelt = [form.encode("utf-8", "surrogatepass") for form in spellings(value)]
            forms |= {form: f"\x1a[{label}]{number}\x1a".encode() for number, form in enumerate(spelt)}
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
