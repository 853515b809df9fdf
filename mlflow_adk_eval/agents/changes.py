"""What the tool calls of a conversation did to its session, kept with every run as far as that is small."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_adk_eval.evalset.conversation import CallChange, SessionChange

_LARGEST = 1 << 18
"""How many bytes of changes are kept of a conversation. With more, its run has to be recorded, so that plain runs stay small."""
_NOTHING = SessionChange()


@dataclass(slots=True)
class ChangeLog:
    """What the calls of one conversation did so far."""

    changes: list[CallChange] = field(default_factory=list[CallChange])
    _size: int = 0

    def add(self, call: CallChange, change: SessionChange | None) -> None:
        """Note what a call did.

        Args:
            call: which call it is, how long it took and what it raised.
            change: what it did; ``None`` if that could not be seen.
        """
        if change is None or not self._has_room(change):
            self.changes.append(call.model_copy(update={"lost": True}))
        else:
            self.changes.append(call.model_copy(update={name: value for name, value in change if value}))

    def _has_room(self, change: SessionChange) -> bool:
        if change == _NOTHING:
            return True
        size = len(change.model_dump_json())
        if self._size + size > _LARGEST:
            return False
        self._size += size
        return True
