"""``python -m dfx_agent``."""

import sys

from dfx_agent.commands import main

sys.exit(main())
