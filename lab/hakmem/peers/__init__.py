"""The allocators that hakmem is measured against: fetched from package registries, built, proved, and found again.

Layers, each using only those before it: workshop (commands and their log), sources (where the code comes from),
recipes (how it becomes a shared library), catalogue (which peers there are), store (what is installed), takeover
(proof that a library is what it says it is), installing. None of their code is part of this project.
"""

from __future__ import annotations

from hakmem.peers.catalogue import PEERS, Peer
from hakmem.peers.store import installed

__all__ = ["PEERS", "Peer", "installed"]
