"""Workers that the tests of a module share."""

from __future__ import annotations

from collections.abc import Callable

from partita.lab.rehearsal import Rehearsal

SEED = 3
Crews = Callable[[str, str], Rehearsal]
