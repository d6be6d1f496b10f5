"""Packhorse's own roles on a virtual clock: everything that could happen is drawn from one seed."""
