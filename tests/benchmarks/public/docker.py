"""Stands for `docker` in the harness: the words go to the process that owns the server (`server.py`)."""

import os
import sys
from multiprocessing.connection import Client

with Client(os.environ["PUBLIC_SERVER"], "AF_UNIX") as connection:
    connection.send(sys.argv[1:])
    status, text = connection.recv()
print(text)
sys.exit(status)
