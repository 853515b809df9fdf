"""Answers that are kept in memory, for tests of what asks for them."""

from __future__ import annotations

from mlflow_adk_eval.judge.protocol import Account, Answer


class Memory(dict[str, Answer]):
    """A ledger of this process, without accounts."""

    shared = False

    def put(self, address: str, answer: Answer, /) -> None:
        self[address] = answer

    def claim(self, address: str, /, *, again: bool = False) -> bool:
        return again or address not in self

    def give_up(self, address: str, /) -> None:
        pass

    def account(self, name: str, /) -> Account | None:
        return None

    def set_account(self, name: str, body: str, /, *, version: int) -> bool:
        return False
