"""Where there is no GPU the kernels are interpreted, if triton was not imported before."""

import os
import sys
from pathlib import Path

if not Path("/dev/nvidiactl").exists() and "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"
