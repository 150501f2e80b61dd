"""What every backend of Django's Tasks framework does, as its reference backends do it.

The suite runs against all of `SUBJECTS`; a backend is put to the test by adding a line there. That the framework's own
immediate and dummy backends pass it shows that it asks for the framework's behaviour, not for ours.
"""
