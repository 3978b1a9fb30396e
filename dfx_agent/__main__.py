"""``python -m dfx_agent``."""

import sys

try:
    from dfx_agent.commands import main
except KeyboardInterrupt:
    sys.exit(130)

sys.exit(main())
