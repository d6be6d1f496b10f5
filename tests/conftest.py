"""What every test shares."""

from hypothesis import settings

# A busy machine is no reason to fail: pytest's own timeout is the limit.
settings.register_profile("packhorse", deadline=None)
settings.load_profile("packhorse")
