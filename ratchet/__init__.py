"""What every room shares: records, configuration, durable files, the run folder, progress and errors."""

import os

# OpenMP's threads wait by spinning unless told otherwise; on a small machine that does anything else as well, two
# spinning threads starve the ones that work (measured: 7 against 62 GFLOPS with one busy neighbour on two cores). It
# must be set before torch is loaded, so it is set here, where every command begins.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
