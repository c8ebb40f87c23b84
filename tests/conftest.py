"""Settings of all tests: Hypothesis sets no time limits, since the machine that runs them may be busy."""

from hypothesis import settings

settings.register_profile("stepwell", deadline=None)
settings.load_profile("stepwell")
