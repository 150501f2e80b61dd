"""PROCESSING tasks whose worker does not answer, and taking them back."""
