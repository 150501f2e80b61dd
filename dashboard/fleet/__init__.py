"""Many installations on one page: each is asked through its API, and nothing is ever written from afar."""
