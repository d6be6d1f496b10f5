"""Commands of the site: `python examples/bakery/manage.py packhorse status`, for example."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bakery.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
