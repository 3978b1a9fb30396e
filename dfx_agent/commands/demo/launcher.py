"""torchrun of the demo, which ends on Ctrl-C without a traceback."""

from __future__ import annotations

import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.run import main

if __name__ == "__main__":
    try:
        main()
    except SignalException as ended:  # torchrun has ended the workers
        sys.exit(128 + ended.sigval)
    except KeyboardInterrupt:
        sys.exit(130)
