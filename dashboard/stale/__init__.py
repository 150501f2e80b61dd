"""PROCESSING tasks whose worker does not answer, and recovering them."""
