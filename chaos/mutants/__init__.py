"""Packhorse, made wrong on purpose in one small way at a time, to see that the checker notices.

Nothing here is known to Packhorse itself: a mutant is a patch that is put on for one story, or in the processes of one
run, and taken off again.
"""
