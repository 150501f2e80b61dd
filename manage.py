#!/usr/bin/env python
"""The command line of Rowlock: `python manage.py help` lists every command."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    sys.argv[0] = __file__  # settings read the command from argv, also when the script `rowlock` called this
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
