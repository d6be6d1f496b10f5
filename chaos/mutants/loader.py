"""The application of the chaos runs in processes of which one thing is wrong: $CHAOS_MUTANT names it."""

from __future__ import annotations

import os

from chaos.jobs import from_environment
from chaos.mutants.patches import MUTANTS, Patches

if "CHAOS_MUTANT" in os.environ:
    MUTANTS[os.environ["CHAOS_MUTANT"]].put_on(Patches())
    app = from_environment()
