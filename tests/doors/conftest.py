"""The doors are tested on the stores and servers of the tracking tests."""

from tests.tracking.conftest import _no_surroundings, new_server, server, store, template

__all__ = ["_no_surroundings", "new_server", "server", "store", "template"]
