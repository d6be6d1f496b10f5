"""Real workers under real faults, and a checker of what became of every job: `python -m chaos`."""
